"""The tables of a report: costs, settings and runs.

The cost table follows the paper's Table 4: best accuracy, the cost to reach it, and the cost to match FedAvg's best.
"""

from collections.abc import Iterable, Sequence

from fedgbo.reports.comparison import Effort, Paired, Summary, baseline_of, summarise
from fedgbo.reports.load import Group
from fedgbo.reports.sections import Section, differing
from fedgbo.reports.table import Cell, Table, quantity

COLUMNS = ("Algorithm", "Best accuracy (%)", "Rounds", "Upload", "FLOPs")
AGAINST = ("Rounds to match FedAvg", "Upload to match", "FLOPs to match", "Fewer rounds", "Difference to FedAvg", "p")
REMARK = (
    "Accuracy: the highest mean over seeds, ± half of its 95% Student's t interval. Upload and FLOPs are those of all "
    "clients together until then."
)
PAIRED = (
    "Difference: best accuracy minus FedAvg's in points, seed by seed, ± half of its 95% interval; p is the paired t "
    "test's."
)


def cost_columns(against: bool) -> tuple[str, ...]:
    """Return the column heads; `against` adds those that compare with FedAvg."""
    return COLUMNS + (AGAINST if against else ())


def cost_remarks(against: bool) -> tuple[str, ...]:
    """Explain the columns."""
    return (REMARK, PAIRED) if against else (REMARK,)


def cost_lines(groups: Sequence[Group], against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each group; the first is its label."""
    rows, base = summarise(groups), baseline_of(groups)
    baseline = next((row for row, group in zip(rows, groups, strict=True) if group is base), None)
    return row_lines(rows, baseline, against)


def row_lines(rows: Sequence[Summary], baseline: Summary | None, against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each summary; `baseline` is one of them."""
    highest = max((row.accuracy for row in rows), default=None)
    lines = []
    for row in rows:
        cells = [Cell(row.label), accuracy_cell(row, strong=row.accuracy == highest), *_effort_cells(row.best)]
        if against and (baseline is None or row is baseline):
            cells += [Cell("-")] * len(AGAINST)
        elif against and baseline is not None:
            ratio = f"{baseline.best.round / row.match.round:.1f}x" if row.match and row.match.round else "-"
            cells += [*_effort_cells(row.match), Cell(ratio), *paired_cells(row.versus)]
        lines.append(tuple(cells))
    return lines


def accuracy_cell(row: Summary, published: str | None = None, *, strong: bool = False) -> Cell:
    """Write an accuracy in per cent with its interval."""
    return Cell(percent(row.accuracy, row.interval), published, exact=row.accuracy, strong=strong)


def percent(accuracy: float, interval: float | None) -> str:
    """Write a share in per cent with half of its interval.

    >>> percent(0.4023, 0.009), percent(0.5, None)
    ('40.2 ± 0.9', '50.0')
    """
    return f"{100 * accuracy:.1f}" + ("" if interval is None else f" ± {100 * interval:.1f}")


def paired_cells(versus: Paired | None) -> list[Cell]:
    """Write a difference in points and its p value."""
    if versus is None:
        return [Cell("-"), Cell("-")]
    p = "-" if versus.p is None else "< 0.001" if versus.p < 0.001 else f"{versus.p:.3f}"
    sign = "+" if versus.difference >= 0 else ""
    text = f"{sign}{percent(versus.difference, versus.interval)}"
    return [Cell(text, exact=versus.difference), Cell(p, exact=versus.p)]


def cost_table(section: Section) -> Table | None:
    """Return the table of costs; None where no line has accuracies."""
    groups = section.groups()
    if not groups:
        return None
    against = baseline_of(groups) is not None
    title = f"{section.title}: best accuracy, and what it took on all clients together"
    columns, rows, remarks = cost_columns(against), tuple(cost_lines(groups, against)), cost_remarks(against)
    return Table(f"{section.slug}-costs", title, columns, rows, remarks=remarks, measured=True)


def settings_table(section: Section) -> Table:
    """Return the settings of each line, with a column for each setting that is not the same for all."""
    names = [name for name in differing([line.settings for line in section.lines]) if name != "algorithm"]
    rows = [(line.label, *(line.settings.get(name, "") for name in names)) for line in section.lines]
    return _text_table(section, "settings", "settings in which the runs differ", ("Algorithm", *names), rows)


def shared_settings(section: Section) -> dict[str, str]:
    """Return the settings that all lines have in common."""
    several = [line.settings for line in section.lines]
    return {name: value for name, value in several[0].items() if name not in differing(several)}


def runs_table(section: Section) -> Table:
    """Return every run with its status, rounds, best accuracy and time."""
    rows = []
    for line in section.lines:
        for run in line.runs:
            last = run.records[-1]
            best = max((record.accuracy for record in run.records if record.accuracy is not None), default=None)
            score = "-" if best is None else f"{best:.1%}"
            rounds, seconds = f"{last.round} of {run.rounds}", f"{last.seconds:.1f} s"
            rows.append((str(run.path), line.label, str(run.config.seed), run.status, rounds, score, seconds))
    columns = ("Run", "Algorithm", "Seed", "Status", "Rounds", "Best accuracy", "Time")
    return _text_table(section, "runs", "runs", columns, rows)


def _text_table(
    section: Section, name: str, title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Table:
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(f"{section.slug}-{name}", f"{section.title}: {title}", columns, cells, measured=True)


def _effort_cells(effort: Effort | None) -> list[Cell]:
    if effort is None:
        return [Cell("-")] * 3
    upload = Cell(quantity(effort.upload_bytes, "B", 1024), exact=effort.upload_bytes)
    flops = "not counted" if effort.flops is None else quantity(effort.flops, "")
    return [Cell(str(effort.round), exact=effort.round), upload, Cell(flops, exact=effort.flops)]
