"""The table of costs, as the paper's Table 4 has it: best accuracy, what it took, and what it took to match FedAvg."""

from collections.abc import Sequence

from fedgbo.reports.load import Group
from fedgbo.reports.paired import Paired
from fedgbo.reports.quantity import quantity
from fedgbo.reports.summary import Effort, Row, baseline_of, summarise
from fedgbo.reports.table import Cell

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
    """Return the heads of the columns, with those that compare with FedAvg or without."""
    return COLUMNS + (AGAINST if against else ())


def cost_remarks(against: bool) -> tuple[str, ...]:
    """Say what the columns mean."""
    return (REMARK, PAIRED) if against else (REMARK,)


def cost_lines(groups: Sequence[Group], against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each group; the first is its label."""
    rows, base = summarise(groups), baseline_of(groups)
    baseline = next((row for row, group in zip(rows, groups, strict=True) if group is base), None)
    return row_lines(rows, baseline, against)


def row_lines(rows: Sequence[Row], baseline: Row | None, against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each row; `baseline` is one of them."""
    highest = max((row.accuracy for row in rows), default=None)
    return [
        (
            Cell(row.label),
            accuracy_cell(row, strong=row.accuracy == highest),
            *_effort(row.best),
            *(_against(row, baseline) if against else ()),
        )
        for row in rows
    ]


def accuracy_cell(row: Row, published: str | None = None, *, strong: bool = False) -> Cell:
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


def _effort(effort: Effort | None) -> list[Cell]:
    if effort is None:
        return [Cell("-")] * 3
    return [
        Cell(str(effort.round), exact=effort.round),
        Cell(quantity(effort.upload_bytes, "B", 1024), exact=effort.upload_bytes),
        Cell(quantity(effort.flops, ""), exact=effort.flops),
    ]


def _against(row: Row, baseline: Row | None) -> list[Cell]:
    if baseline is None or row is baseline:
        return [Cell("-")] * len(AGAINST)
    ratio = f"{baseline.best.round / row.match.round:.1f}x" if row.match and row.match.round else "-"
    return [*_effort(row.match), Cell(ratio), *paired_cells(row.versus)]
