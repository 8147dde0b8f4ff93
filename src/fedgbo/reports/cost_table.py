"""A cost table like the paper's Table 4: best accuracy, its cost, and the cost to match FedAvg."""

from collections.abc import Iterable, Sequence

from fedgbo.reports.comparison import FEWEST_SEEDS, ROUNDING, Effort, Paired, Summary, baseline_row
from fedgbo.reports.table import Cell, quantity
from fedgbo.runs.record import ACCURACY

COSTS = ("Rounds", "Upload", "FLOPs")
BRIEF = ("Rounds", "Rounds to match FedAvg", "Speed-up", "Difference from FedAvg")  # after the name and the score
AGAINST = ("Rounds to match FedAvg", "Upload to match", "FLOPs to match", "Speed-up", "Difference from FedAvg", "p")
BEST = "Best {}: the highest {}. Rounds are those up to that evaluation."
UPLOAD = "Upload: the total of all clients up to that evaluation, as are FLOPs."
FEW = ("", "of one run", "mean over two seeds")
PAIRED = "Difference: best {} minus FedAvg's{}, seed by seed, ± half of its 95% interval."
P = "p: the p value of the paired t test."
SCALE = 1.0  # of accuracies; an interval that is wider says nothing
SPEED_UP = "Speed-up: FedAvg's rounds to its best {}, divided by the rounds to match it; below 1x is slower."


def metric_of(rows: Iterable[Summary]) -> str:
    """Return the name of the rows' metric, or "score" if they have different ones."""
    metrics = {row.metric for row in rows} or {ACCURACY}
    return metrics.pop() if len(metrics) == 1 else "score"


def cost_columns(against: bool, metric: str = ACCURACY) -> tuple[str, ...]:
    """Return the column heads; `against` adds those that compare with FedAvg."""
    return ("Algorithm", _best(metric), *COSTS, *(AGAINST if against else ()))


def brief_columns(metric: str = ACCURACY) -> tuple[str, ...]:
    """Return the heads of the columns that a terminal shows without --wide."""
    return ("Algorithm", _best(metric), *BRIEF)


def _best(metric: str) -> str:
    return f"Best {metric} (%)" if metric == ACCURACY else f"Best {metric}"


def cost_remarks(against: bool, seeds: int, metric: str = ACCURACY) -> tuple[str, ...]:
    """Explain the columns; `seeds` is the largest number of seeds in a row."""
    points = " in points" if metric == ACCURACY else ""
    few = seeds < FEWEST_SEEDS  # for intervals
    best = BEST.format(metric, FEW[seeds] if few else "mean over seeds, ± half of its 95% Student's t interval")
    if not against:
        return best, UPLOAD
    speed_up = SPEED_UP.format(metric)
    if few:
        return best, UPLOAD, speed_up, f"Difference: best {metric} minus FedAvg's{points}."
    return best, UPLOAD, speed_up, PAIRED.format(metric, points), P


def cost_lines(rows: Sequence[Summary], against: bool) -> list[tuple[Cell, ...]]:
    """Return the cells of each summary; the first is its label."""
    baseline, highest = baseline_row(rows), max((row.accuracy for row in rows), default=None)
    lines = []
    for row in rows:
        cells = [Cell(row.label), accuracy_cell(row, strong=row.accuracy == highest), *_effort_cells(row.best)]
        if against and baseline is not None and row is not baseline:
            ratio = f"{baseline.best.round / row.match.round:.1f}x" if row.match and row.match.round else "-"
            cells += [*_effort_cells(row.match), Cell(ratio), *paired_cells(row.versus, row.metric)]
        elif against:
            cells += [Cell("-")] * len(AGAINST)
        lines.append(tuple(cells))
    return lines


def accuracy_cell(row: Summary, published: str | None = None, *, strong: bool = False) -> Cell:
    """Write an accuracy in per cent, or a value of another metric, with its interval."""
    return Cell(scored(row.accuracy, row.interval, row.metric), published, exact=row.accuracy, strong=strong)


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


def scored(value: float, interval: float | None, metric: str) -> str:
    """Write a value of a metric with half of its interval.

    >>> scored(0.4023, 0.009, "accuracy"), scored(-7.25, 0.31, "neg_mae"), scored(-7.25, None, "neg_mae")
    ('40.2 ± 0.9', '-7.25 ± 0.31', '-7.25')
    """
    if metric == ACCURACY:
        return percent(value, interval)
    return f"{value:.4g}" if interval is None or interval < ROUNDING else f"{value:.4g} ± {interval:.2g}"


def paired_cells(versus: Paired | None, metric: str = ACCURACY) -> list[Cell]:
    """Write a difference, of accuracies in points, and its p value."""
    if versus is None:
        return [Cell("-"), Cell("-")]
    meaningless = versus.p is None or (versus.interval is not None and versus.interval < ROUNDING)  # no variance
    p = "-" if meaningless or versus.p is None else "< 0.001" if versus.p < 0.001 else f"{versus.p:.3f}"
    text = scored(versus.difference, versus.interval, metric)
    text = f"+{text}" if versus.difference > 0 and float(text.partition(" ")[0]) else text
    return [Cell(text, exact=versus.difference), Cell(p, exact=versus.p)]


def _effort_cells(effort: Effort | None) -> list[Cell]:
    if effort is None:
        return [Cell("-")] * 3
    upload = Cell(quantity(effort.upload_bytes, "B", 1024), exact=effort.upload_bytes)
    flops = "not counted" if effort.flops is None else quantity(effort.flops, "")
    return [Cell(str(effort.round), exact=effort.round), upload, Cell(flops, exact=effort.flops)]
