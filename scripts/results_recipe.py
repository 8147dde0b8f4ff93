"""What docs/results.md says of averages of models on CIFAR100: rounds to FedAvg's best accuracy, with and without."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from results_tasks import wrapped

from fedgbo.reports.comparison import paired
from fedgbo.reports.cost_table import percent
from fedgbo.reports.load import RunData, read_metrics
from fedgbo.reports.table import Cell, Table, markdown

AVERAGED = "averaged"
PLAIN = {"fedavg": {}, "fedgbo-sgdm": {"beta": 0.8}}  # what the study chose, all with lr = 0.1
MARKS = (200, 400, 600, 1000, 2000, 5000)


def recipe_part(folder: Path) -> str:
    """Return a table with a row for every run: those of recipe.csv, and those of the study without averages."""
    file = folder / "recipe.csv"
    runs = sorted(read_metrics(file) if file.exists() else [], key=lambda run: (run.config.label, run.config.seed))
    plain = [run for run in read_metrics(folder / "study" / "cifar100.csv") if _final(run)]
    if not runs or not plain:
        return "No runs yet."
    tuned = next(run for run in plain if run.config.label == "fedavg")
    best = max(_curve(tuned).values())
    rows = [(*_cells(run, best), *_at(run)) for run in [*plain, *runs]]
    columns = (
        "Algorithm", "Seed", "Rounds", f"Rounds to {percent(best, None)}%", "Best (%)", "At round",
        *(f"After {t} (%)" for t in MARKS),
    )  # fmt: skip
    table = Table("recipe", "Test accuracy with and without averages of models", columns, tuple(rows), measured=True)
    return "\n\n".join([markdown(table).strip(), wrapped(_means(runs, best))])


def decays_part(folder: Path) -> str:
    """Return the scores on held-out data of averages with several decays, a row for every training."""
    with (folder / "study" / "average-decays.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    decays = list(dict.fromkeys(score["decay"] for score in scores))
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for score in scores:
        place = found.setdefault((score["algorithm"], score["settings"], score["round"]), {})
        place[score["decay"]] = percent(float(score["accuracy"]), None)
    rows = [tuple(map(Cell, (*key, *(at[decay] for decay in decays)))) for key, at in found.items()]
    named = ("none" if float(decay) == 0 else decay for decay in decays)
    columns = ("Algorithm", "Settings", "Round", *(f"Decay {name} (%)" for name in named))
    return markdown(Table("decays", "Accuracy on held-out data", columns, tuple(rows), measured=True)).strip()


def _final(run: RunData) -> bool:
    """Return whether a run of the study has been evaluated on the test set, with the settings chosen in the end."""
    config = run.config
    if config.held_out is not None or run.status == "diverged" or config.label not in PLAIN:
        return False
    chosen = {"lr": 0.1, **PLAIN[config.label]}
    return chosen.items() <= config.algorithm["optimiser"].items()


def _curve(run: RunData) -> dict[int, float]:
    return {record.round: record.accuracy for record in run.records if record.accuracy is not None}


def _reached(run: RunData, target: float) -> int | None:
    return next((t for t, accuracy in _curve(run).items() if accuracy >= target), None)


def _cells(run: RunData, target: float) -> tuple[Cell, ...]:
    curve = _curve(run)
    top = max(curve, key=lambda t: (curve[t], -t))
    reached = _reached(run, target)
    first = Cell(f"{run.config.label}"), Cell(str(run.config.seed)), Cell(str(max(curve)))
    return *first, Cell(str(reached or "not reached")), Cell(percent(curve[top], None)), Cell(str(top))


def _at(run: RunData) -> tuple[Cell, ...]:
    curve = _curve(run)
    return tuple(Cell(percent(curve[t], None) if t in curve else "-") for t in MARKS)


def _means(runs: Sequence[RunData], target: float) -> str:
    """Return the means over seeds at the last round that all averaged runs have, and the rounds to the target."""
    end = min(max(_curve(run)) for run in runs)
    said, at = [], {}
    for label in dict.fromkeys(run.config.label for run in runs):
        own = [run for run in runs if run.config.label == label]
        at[label] = {run.config.seed: _curve(run)[end] for run in own}
        rounds = ", ".join(str(_reached(run, target) or "not reached") for run in own)
        seeds = ", ".join(map(str, at[label]))
        mean = percent(float(np.mean(list(at[label].values()))), None)
        said.append(
            f"{label} (seeds {seeds}): mean {mean}% after {end} rounds; rounds to {percent(target, None)}%: {rounds}."
        )
    if len(at) == 2:
        (first, one), (second, other) = at.items()
        both = [seed for seed in one if seed in other]
        ours, theirs = (100 * np.array([at[seed] for seed in both]) for at in (other, one))
        versus, pairs = paired(ours, theirs), ", ".join(f"{difference:+.1f}" for difference in ours - theirs)
        half = "" if versus.interval is None else f" ± {versus.interval:.1f} (95% interval)"
        said.append(
            f"Difference between {second} and {first} after {end} rounds, in points, paired by seed: "
            f"{versus.difference:+.1f}{half}; seed by seed {pairs}."
        )
    return " ".join(said)
