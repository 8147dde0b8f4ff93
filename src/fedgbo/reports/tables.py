"""The tables of a report as text: what it cost, what was set, which runs there are."""

from collections.abc import Iterable

from fedgbo.reports.costs import cost_columns, cost_lines, cost_remarks
from fedgbo.reports.load import RunData
from fedgbo.reports.sections import Line, Section
from fedgbo.reports.settings import differing
from fedgbo.reports.summary import baseline_of
from fedgbo.reports.table import Cell, Table


def cost_table(section: Section) -> Table | None:
    """Return the table of costs; None where no line has accuracies."""
    groups = section.groups()
    if not groups:
        return None
    against = baseline_of(groups) is not None
    return Table(
        name=f"{section.slug}-costs",
        title=f"{section.title}: best accuracy, and what it took on all clients together",
        columns=cost_columns(against),
        rows=tuple(cost_lines(groups, against)),
        remarks=cost_remarks(against),
        measured=True,
    )


def settings_table(section: Section) -> Table:
    """Return the settings of each line: a column for each setting in which any two differ."""
    several = [line.settings for line in section.lines]
    names = [name for name in differing(several) if name != "algorithm"]
    rows = [(line.label, *(line.settings.get(name, "") for name in names)) for line in section.lines]
    return _table(section, "settings", "settings in which the runs differ", ("Algorithm", *names), rows)


def shared_settings(section: Section) -> dict[str, str]:
    """Return the settings that all lines have in common."""
    several = [line.settings for line in section.lines]
    return {name: value for name, value in several[0].items() if name not in differing(several)}


def runs_table(section: Section) -> Table:
    """Return every run with how it ended."""
    rows = [_run(line, run) for line in section.lines for run in line.runs]
    columns = ("Run", "Algorithm", "Seed", "Status", "Rounds", "Best accuracy", "Time")
    return _table(section, "runs", "runs", columns, rows)


def _table(section: Section, name: str, title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(f"{section.slug}-{name}", f"{section.title}: {title}", columns, cells, measured=True)


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
