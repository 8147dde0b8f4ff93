"""What docs/results.md says of runs on the paper's tasks, compared over rounds and seeds that all of them have."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedgbo.algorithms import ALGORITHMS
from fedgbo.core.errors import RunFolderError
from fedgbo.experiments.paper.cost_tables import printed_rows as published
from fedgbo.experiments.paper.cost_tables import tasks
from fedgbo.reports.charts import save_chart
from fedgbo.reports.comparison import ROUNDING, Summary, conclusion, summarise
from fedgbo.reports.cost_table import cost_columns, cost_lines, cost_remarks, percent
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import Group, RunData, group_runs
from fedgbo.reports.sections import Line, Section, sections_of, shared_settings
from fedgbo.reports.table import Cell, Table, markdown

TASKS = {"cifar100": True, "shakespeare": True, "femnist": False}  # whether the data are the paper's
PAPER_ROUNDS, PAPER_STEP = 5000, 50
MILESTONES = (100, 200, 500, 1000, 2000, 5000)  # at which accuracies are compared, and at the end
LEFT_OUT = ("FLOPs to match", "p")


@dataclass(frozen=True)
class Comparison:
    """Lines over the rounds that all of them have, on the seeds that all of them have."""

    end: int
    seeds: tuple[int, ...]
    groups: tuple[Group, ...]

    @cached_property
    def summaries(self) -> list[Summary]:
        """The results of all groups."""
        return summarise(self.groups)

    @property
    def title(self) -> str:
        """Which rounds and seeds.

        >>> Comparison(2000, (0, 1), ()).title
        'first 2000 rounds, seeds 0 and 1'
        """
        several = "s" if len(self.seeds) > 1 else ""
        return f"first {self.end} rounds, seed{several} {' and '.join(map(str, self.seeds))}"


def comparisons(lines: Sequence[Line]) -> list[Comparison]:
    """Return what can be compared with FedAvg: for each round at which a run ends, all that got there.

    Algorithms with more seeds than others are also compared on all of their seeds. Of the same algorithms on the same
    seeds only the longest comparison is kept.
    """
    longest: dict[tuple[tuple[str, ...], tuple[int, ...]], Comparison] = {}
    for end in sorted({_end(run) for line in lines for run in line.runs} - {0}):
        there = [replace(line, runs=tuple(_cut(run, end) for run in line.runs if _end(run) >= end)) for line in lines]
        there = [line for line in there if line.runs]
        for seeds in {frozenset(_seeds(line)) for line in there}:
            among = [line for line in there if seeds <= _seeds(line)]
            if len(among) > 1 and "fedavg" in {line.algorithm for line in among}:
                groups = tuple(_group(line, seeds) for line in among)
                key = tuple(group.label for group in groups), tuple(sorted(seeds))
                longest[key] = Comparison(end, key[1], groups)
    return sorted(longest.values(), key=lambda found: (found.end, found.seeds))


def _seeds(line: Line) -> set[int]:
    return {run.config.seed for run in line.runs}


def task_part(name: str, runs: Sequence[RunData]) -> str:
    """Return the text for a task: the runs, their results, and the paper's values."""
    if not runs:
        return "No runs yet."
    section = _section(name, runs)
    found = comparisons(section.lines)
    parts = [markdown(_runs_table(section)).strip()]
    parts += [f"![test accuracy against rounds](images/{name}.svg)"] if found else []
    for one in found:
        parts += [markdown(_table(name, one)).strip(), *map(wrapped, conclusion(one.summaries))]
    parts += [wrapped(_said_by_paper(name))]
    if TASKS[name] and found:
        parts[-1] = wrapped(f"{_said_by_paper(name)} {_passed(name, found)}")
    most = max((len(group.runs) for one in found for group in one.groups), default=1)
    return "\n\n".join([*parts, wrapped(" ".join(cost_remarks(False, most)))])


def draw(name: str, runs: Sequence[RunData], file: Path, folder: Path) -> None:
    """Draw one wide panel on the seeds of the longest comparison, each line as far as it goes."""
    lines = _section(name, runs).lines
    if not (found := comparisons(lines)):
        return
    seeds = found[-1].seeds
    whole = [line for line in lines if set(seeds) <= {run.config.seed for run in line.runs}]
    about = f"{_title(name)} with the paper's settings ({_rates(whole)}), {found[-1].end:,} rounds"
    chart = accuracy_chart([_group(line, seeds) for line in whole], about, wide=True)
    save_with_digest(chart, file, folder / name)


def _rates(lines: Sequence[Line]) -> str:
    """Name the learning rates of FedAvg and FedGBO, which the paper's authors chose for each by itself."""
    shown, algorithms = {"fedavg": "FedAvg", "fedgbo": "FedGBO"}, [line.runs[0].config.algorithm for line in lines]
    chosen = [(shown[one["name"]], one["optimiser"]["lr"]) for one in algorithms if one["name"] in shown]
    return ", ".join(f"lr {rate:g} for {name}" for name, rate in chosen)


def save_with_digest(chart: Any, file: Path, picture: Path, content: bytes | None = None) -> None:
    """Save a chart as SVG; it ends with a digest of the file, or the part of it, that it was made of."""
    (saved,) = save_chart(chart, picture, ["svg"])
    digest = hashlib.sha256(file.read_bytes() if content is None else content).hexdigest()
    saved.write_text(f"{saved.read_text(encoding='utf-8')}\n<!-- {file.name}, SHA-256 {digest} -->\n", encoding="utf-8")


def _section(name: str, runs: Sequence[RunData]) -> Section:
    made = sections_of(runs)
    if len(made) != 1:
        raise RunFolderError(f"runs on {name} cannot be compared: {', '.join(section.title for section in made)}")
    return made[0]


def _runs_table(section: Section) -> Table:
    shared = shared_settings(section)
    rows = []
    for line in section.lines:
        settings = [f"{key}={value}" for key, value in line.settings.items() if key not in ("algorithm", *shared)]
        rows.append((line.label, ", ".join(settings), ", ".join(map(_length, line.runs))))
    said = ", ".join(f"{key}={value}" for key, value in shared.items())
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table("runs", f"Runs, all with {said}", ("Algorithm", "Settings", "Rounds"), cells, measured=True)


def _length(run: RunData) -> str:
    length = f"{_end(run)}" if _end(run) == run.rounds else f"{_end(run)} of {run.rounds}"
    return f"{length} (seed {run.config.seed}{', diverged' if run.status == 'diverged' else ''})"


def _table(name: str, one: Comparison) -> Table:
    marks = [*[t for t in MILESTONES if t < one.end][-2:], one.end]
    kept = [i for i, column in enumerate(cost_columns(True)) if column not in LEFT_OUT]
    rows = []
    for cells, group in zip(cost_lines(one.summaries, True), one.groups, strict=True):
        paper = Cell(_printed(name, group).get("Accuracy", "-"))
        rows.append((*(cells[i] for i in kept), *accuracies(group, marks), paper))
    columns = [cost_columns(True)[i] for i in kept]
    columns += [*(f"After {t} (%)" for t in marks), f"Paper's best, {PAPER_ROUNDS} rounds (%)"]
    return Table(name, f"{_title(name)}: {one.title}", tuple(columns), tuple(rows), measured=True)


def accuracies(group: Group, marks: Sequence[int]) -> list[Cell]:
    """Return the mean accuracy after each of these rounds."""
    at = dict(zip(group.rounds.astype(int).tolist(), group.accuracy.mean(axis=0).tolist(), strict=True))
    return [Cell(percent(at[t], None) if t in at else "-") for t in marks]


def _said_by_paper(name: str) -> str:
    ours, base = (_row(name, title) for title in ("FedGBO", "FedAvg"))
    said = f"In the paper ({PAPER_ROUNDS} rounds, 5 seeds), FedAvg's best is {base['Accuracy']}%, at round"
    said += f" {_round(name, base['Upload'])}. FedGBO's best is {ours['Accuracy']}%"
    if _number(ours["Accuracy"]) < _number(base["Accuracy"]):
        return f"{said}, less than FedAvg's. (Rounds follow from the uploads of the paper's Table 4.)"
    match, best = _round(name, ours["Upload to match"]), _round(name, base["Upload"])
    return (
        f"{said}, and it matches FedAvg's best at round {match}, in {best / match:.1f}x fewer rounds. "
        "(Rounds follow from the uploads of the paper's Table 4.)"
    )


def _passed(name: str, found: Sequence[Comparison]) -> str:
    """Return the rounds at which our longest comparison reached the paper's best accuracy of FedAvg."""
    goal, last = _number(_row(name, "FedAvg")["Accuracy"]), found[-1]
    said = []
    for group in last.groups:
        reached = np.flatnonzero(group.accuracy.mean(axis=0) >= goal / 100 - ROUNDING)
        said.append(f"{group.label} {int(group.rounds[reached[0]]) if reached.size else 'not reached'}")
    return f"Rounds to {goal}% in our runs ({last.title}): {', '.join(said)}."


def _printed(name: str, group: Group) -> dict[str, str]:
    return _row(name, ALGORITHMS[str(group.runs[0].config.algorithm["name"])].__name__)


def _row(name: str, algorithm: str) -> dict[str, str]:
    rows = published("table4")
    return next((row for row in rows if (row["Task"], row["Algorithm"]) == (_title(name), algorithm)), {})


def _round(name: str, upload: str) -> int:
    """Return the round at which the uploads of all clients, one model per round each, reach this number of GiB."""
    task = tasks()[name]
    return PAPER_STEP * round(float(upload) * 2**30 / (4 * task.params * task.clients_per_round) / PAPER_STEP)


def _number(accuracy: str) -> float:
    return float(accuracy.partition(" ")[0])


def _title(name: str) -> str:
    return tasks()[name].title


def _group(line: Line, seeds: Collection[int]) -> Group:
    return replace(group_runs([run for run in line.runs if run.config.seed in seeds])[0], label=line.label)


def _cut(run: RunData, end: int) -> RunData:
    return replace(run, records=tuple(record for record in run.records if record.round <= end))


def _end(run: RunData) -> int:
    return run.records[-1].round


def wrapped(text: str) -> str:
    """Break a paragraph into lines."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)
