"""What docs/results.md says of the studies at equal effort: the search, the final runs, and the picture."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from results_tasks import MILESTONES, accuracies, save_with_digest, wrapped

from fedgbo.experiments.shelf import identity
from fedgbo.experiments.study import (
    diverged_contenders,
    diverged_runs,
    final_groups,
    kept_runs,
    read_study,
    search_table,
)
from fedgbo.reports.comparison import ROUNDING, conclusion, paired, summarise
from fedgbo.reports.cost_table import cost_columns, cost_lines, cost_remarks
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import Group, group_runs, read_metrics
from fedgbo.reports.table import Cell, Table, markdown

STUDIES = ("cifar100", "femnist", "digits-average")
NEAR = (5, 2, 1)  # points
SMALLER = "cifar100-fedavg"  # runs of FedAvg with a smaller learning rate than the study's choice


def study_part(name: str, folder: Path) -> str:
    """Return the tables of a study, as far as it has been carried out."""
    study, runs = read_study(folder / "study" / f"{name}.toml"), kept_runs(folder / "study" / f"{name}.csv")
    begun = [c for c in study.contenders if any(c.score(trial, runs) is not None for trial in c.trials)]
    if not begun:
        return "No runs yet."
    missing = [c.label for c in study.contenders if len(c.due(runs))]
    parts = [markdown(search_table(study, runs)).strip()]
    if groups := final_groups(study, runs):
        parts += [
            f"![test accuracy against rounds](images/study-{name}.svg)",
            markdown(_table(groups, list(diverged_contenders(study, runs)))).strip(),
        ]
        parts += [
            *map(wrapped, conclusion(summarise(groups))),
            wrapped(_near(groups)),
            wrapped(" ".join(cost_remarks(True, len(groups[0].runs)))),
        ]
    parts += map(wrapped, diverged_runs(study, runs))
    if missing:
        parts.append(wrapped(f"Not finished yet: {', '.join(missing)}."))
    return "\n\n".join(parts)


def seeds_part(folder: Path) -> str:
    """Return the table of the contenders whose final runs ended with every seed, beside FedAvg with a smaller lr."""
    file = folder / "study" / f"{SMALLER}.csv"
    study, runs = read_study(folder / "study" / "cifar100.toml"), kept_runs(folder / "study" / "cifar100.csv")
    smaller = group_runs(read_metrics(file))[0] if file.exists() else None
    if smaller is None:
        return "No runs yet."
    rate = smaller.runs[0].config.algorithm["optimiser"]["lr"]
    groups = [replace(smaller, label=f"fedavg, lr {rate}")]
    for contender in study.contenders:
        wanted = [identity(config) for config in contender.final_runs(runs)]
        found = [runs[name] for name in wanted if name in runs and runs[name].status != "diverged"]
        if found and len(found) == len(wanted) == len(smaller.runs):
            groups.append(replace(group_runs(found)[0], label=contender.label))
    said = [*map(wrapped, conclusion(summarise(groups))), wrapped(" ".join(cost_remarks(True, len(smaller.runs))))]
    return "\n\n".join(
        [markdown(_table(groups, [], f"FedAvg with lr {rate} and the chosen settings of the others")).strip(), *said]
    )


def _near(groups: list[Group]) -> str:
    """Say when each contender is near FedAvg's best accuracy, and how far from FedAvg it ends."""
    best = max(next(group for group in groups if group.label == "fedavg").accuracy.mean(axis=0))
    said = []
    for group in groups:
        at = [np.flatnonzero(group.accuracy.mean(axis=0) >= best - points / 100 - ROUNDING) for points in NEAR]
        said.append(f"{group.label} {', '.join(str(int(group.rounds[i[0]])) if i.size else 'never' for i in at)}")
    points = f"{', '.join(map(str, NEAR[:-1]))} and {NEAR[-1]}"
    near = f"Rounds until the mean is within {points} points of FedAvg's best: {'; '.join(said)}."
    base, end = next(group for group in groups if group.label == "fedavg").accuracy[:, -1], int(groups[0].rounds[-1])
    ends = []
    for group in groups:
        if group.label != "fedavg":
            one = paired(100 * group.accuracy[:, -1], 100 * base)
            half = "" if one.interval is None else f" ± {one.interval:.1f}"
            ends.append(f"{group.label} {one.difference:+.1f}{half}")
    return f"{near} Difference from FedAvg after {end} rounds, in points, paired by seed: {', '.join(ends)}."


def draw_study(name: str, folder: Path, images: Path) -> None:
    """Draw the mean accuracy of every contender; the picture ends with a digest of the file that it was made of."""
    file = folder / "study" / f"{name}.csv"
    study = read_study(file.with_suffix(".toml"))
    groups = final_groups(study, kept_runs(file))
    if not groups:
        return
    chart = accuracy_chart(groups, f"{study.title}; settings chosen with the same effort on held-out data", wide=True)
    save_with_digest(chart, file, images / f"study-{name}")


def _table(groups: list[Group], diverged: list[str], what: str = "The chosen settings") -> Table:
    seeds = sorted(run.config.seed for run in groups[0].runs)
    end = int(groups[0].rounds[-1])
    marks = [*[t for t in MILESTONES if t < end][-3:], end]
    rows = []
    for cells, group in zip(cost_lines(summarise(groups), True), groups, strict=True):
        rows.append((*cells, *accuracies(group, marks)))
    columns = (*cost_columns(True), *(f"After {t} (%)" for t in marks))
    rows += [(Cell(label), Cell("diverged"), *[Cell("-")] * (len(columns) - 2)) for label in diverged]
    several = "s" if len(seeds) > 1 else ""
    title = f"{what} on the test set: {end} rounds, seed{several} {', '.join(map(str, seeds))}"
    return Table("study", title, columns, tuple(rows), measured=True)
