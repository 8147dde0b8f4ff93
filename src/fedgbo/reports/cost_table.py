"""A cost table like the paper's Table 4: best accuracy, its cost, and the cost to match FedAvg."""

from collections.abc import Sequence

from fedgbo.reports.comparison import FEWEST_SEEDS, ROUNDING, Effort, Paired, Summary, baseline_row
from fedgbo.reports.table import Cell, quantity

COLUMNS = ("Algorithm", "Best accuracy (%)", "Rounds", "Upload", "FLOPs")
BRIEF = ("Algorithm", "Best accuracy (%)", "Rounds", "Rounds to match FedAvg", "Speed-up", "Difference from FedAvg")
AGAINST = ("Rounds to match FedAvg", "Upload to match", "FLOPs to match", "Speed-up", "Difference from FedAvg", "p")
BEST = "Best accuracy: the highest {}; rounds, upload and FLOPs (of all clients) are the totals up to that evaluation."
FEW = ("", "of one run", "mean over two seeds")
PAIRED = (
    "Difference: best accuracy minus FedAvg's in points, seed by seed, ± half of its 95% interval; p is the p value "
    "of the paired t test."
)
SCALE = 1.0  # of accuracies; an interval that is wider says nothing
SPEED_UP = "Speed-up: FedAvg's rounds to its best accuracy, divided by the rounds to match it; below 1x is slower."


def cost_columns(against: bool) -> tuple[str, ...]:
    """Return the column heads; `against` adds those that compare with FedAvg."""
    return COLUMNS + (AGAINST if against else ())


def cost_remarks(against: bool, seeds: int) -> tuple[str, ...]:
    """Explain the columns; `seeds` is the largest number of seeds in a row."""
    if seeds < FEWEST_SEEDS:  # for intervals
        best, difference = BEST.format(FEW[seeds]), "Difference: best accuracy minus FedAvg's in points."
    else:
        best, difference = BEST.format("mean over seeds, ± half of its 95% Student's t interval"), PAIRED
    return (best, SPEED_UP, difference) if against else (best,)


def cost_lines(rows: Sequence[Summary], against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each summary; the first is its label."""
    baseline, highest = baseline_row(rows), max((row.accuracy for row in rows), default=None)
    lines = []
    for row in rows:
        cells = [Cell(row.label), accuracy_cell(row, strong=row.accuracy == highest), *_effort_cells(row.best)]
        if against and baseline is not None and row is not baseline:
            ratio = f"{baseline.best.round / row.match.round:.1f}x" if row.match and row.match.round else "-"
            cells += [*_effort_cells(row.match), Cell(ratio), *paired_cells(row.versus)]
        elif against:
            cells += [Cell("-")] * len(AGAINST)
        lines.append(tuple(cells))
    return lines


def accuracy_cell(row: Summary, published: str | None = None, *, strong: bool = False) -> Cell:
    """Write an accuracy in per cent with its interval."""
    return Cell(percent(row.accuracy, row.interval), published, exact=row.accuracy, strong=strong)


def percent(accuracy: float, interval: float | None) -> str:
    """Write a share in per cent with half of its interval, where that means something.

    It does not where all seeds agree to the last digit, or where the interval is wider than the scale from 0 to 100.

    >>> percent(0.4023, 0.009), percent(0.5, None), percent(0.5, 0.0), percent(0.5, 0.6), percent(-0.0001, 0.0002)
    ('40.2 ± 0.9', '50.0', '50.0', '50.0', '0.0 ± <0.1')
    """
    number = f"{100 * accuracy:.1f}"
    number = number.removeprefix("-") if not float(number) else number
    if interval is None or interval < ROUNDING or 2 * interval > SCALE:
        return number
    return f"{number} ± " + (f"{100 * interval:.1f}" if 100 * interval >= 0.05 else "<0.1")


def paired_cells(versus: Paired | None) -> list[Cell]:
    """Write a difference in points and its p value."""
    if versus is None:
        return [Cell("-"), Cell("-")]
    meaningless = versus.p is None or (versus.interval is not None and versus.interval < ROUNDING)  # no variance
    p = "-" if meaningless or versus.p is None else "< 0.001" if versus.p < 0.001 else f"{versus.p:.3f}"
    text = percent(versus.difference, versus.interval)
    text = f"+{text}" if versus.difference > 0 and not text.startswith("0.0") else text
    return [Cell(text, exact=versus.difference), Cell(p, exact=versus.p)]


def _effort_cells(effort: Effort | None) -> list[Cell]:
    if effort is None:
        return [Cell("-")] * 3
    upload = Cell(quantity(effort.upload_bytes, "B", 1024), exact=effort.upload_bytes)
    flops = "not counted" if effort.flops is None else quantity(effort.flops, "")
    return [Cell(str(effort.round), exact=effort.round), upload, Cell(flops, exact=effort.flops)]
