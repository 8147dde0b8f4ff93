"""The tables of a report as text: what it cost, what was set, which runs there are."""

from dataclasses import dataclass

from fedgbo.reports.load import RunData
from fedgbo.reports.quantity import quantity
from fedgbo.reports.sections import Line, Section
from fedgbo.reports.settings import differing
from fedgbo.reports.summary import Effort, Row, summarise

COSTS = ("algorithm", "best accuracy", "rounds", "upload", "FLOPs")
MATCH = ("rounds to match FedAvg", "upload to match", "FLOPs to match", "fewer rounds")


@dataclass(frozen=True)
class Grid:
    """A table as it is read: its caption, its columns, and rows of text; the first cell of a row names it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def costs_of(section: Section) -> tuple[list[Row], Row | None]:
    """Return the numbers of a section's table of costs, and the row that the others are matched against.

    That is FedAvg's or, if there are several with different settings, the one that got furthest.
    """
    groups = section.groups()
    rows = summarise(groups)
    plain = {line.label for line in section.lines if line.algorithm == "fedavg"}
    rivals = [row for row in rows if row.label in plain]
    if not rivals:
        return rows, None
    label = max(rivals, key=lambda row: row.accuracy).label
    rows = summarise(groups, baseline=label)
    return rows, next(row for row in rows if row.label == label)


def cost_grid(section: Section) -> Grid | None:
    """Return the table of costs; None where no line has accuracies."""
    rows, baseline = costs_of(section)
    if not rows:
        return None
    return Grid(
        f"{section.title}: best accuracy, and what it took on all clients together",
        (*COSTS, *(MATCH if baseline else ())),
        tuple(tuple(cost_cells(row, baseline)) for row in rows),
    )


def cost_cells(row: Row, baseline: Row | None) -> list[str]:
    """Return a row's cells: name, accuracy, what its best took and, with a baseline, what it took to match that."""
    interval = "" if row.interval is None else f" ± {100 * row.interval:.1f}"
    cells = [row.label, f"{100 * row.accuracy:.1f}{interval} %", *_effort(row.best)]
    if baseline is None:
        return cells
    if row is baseline or row.match is None:
        return [*cells, *_effort(None), "-"]
    return [*cells, *_effort(row.match), f"{baseline.best.round / row.match.round:.1f}x" if row.match.round else "-"]


def settings_grid(section: Section) -> Grid:
    """Return the settings of each line: a column for each setting in which any two differ."""
    several = [line.settings for line in section.lines]
    names = [name for name in differing(several) if name != "algorithm"]
    rows = [(line.label, *(line.settings.get(name, "") for name in names)) for line in section.lines]
    return Grid(f"{section.title}: settings in which the runs differ", ("algorithm", *names), tuple(rows))


def shared_settings(section: Section) -> dict[str, str]:
    """Return the settings that all lines have in common."""
    several = [line.settings for line in section.lines]
    return {name: value for name, value in several[0].items() if name not in differing(several)}


def runs_grid(section: Section) -> Grid:
    """Return every run with how it ended."""
    rows = [_run(line, run) for line in section.lines for run in line.runs]
    columns = ("run", "algorithm", "seed", "status", "rounds", "best accuracy", "time")
    return Grid(f"{section.title}: runs", columns, tuple(rows))


def _run(line: Line, run: RunData) -> tuple[str, ...]:
    last = run.records[-1]
    scores = [record.accuracy for record in run.records if record.accuracy is not None]
    return (
        str(run.path),
        line.label,
        str(run.config.seed),
        run.status,
        f"{last.round} of {run.rounds}",
        f"{max(scores):.1%}" if scores else "-",
        f"{last.seconds:.1f} s",
    )


def _effort(effort: Effort | None) -> list[str]:
    if effort is None:
        return ["-", "-", "-"]
    return [str(effort.round), quantity(effort.upload_bytes, "B", 1024), quantity(effort.flops, "")]
