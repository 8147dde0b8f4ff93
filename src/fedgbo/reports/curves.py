"""Curves: means over seeds with confidence intervals, of scores against costs, as points to draw and as CSV."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgbo.core import RunFolderError
from fedgbo.reports.comparison import confidence
from fedgbo.reports.load import Floats, RunData, over_seeds
from fedgbo.reports.palette import Point
from fedgbo.reports.sections import Line
from fedgbo.reports.table import numbers_csv
from fedgbo.runs.record import ACCURACY, Record

DIGITS = 7  # significant digits of points


@dataclass(frozen=True)
class Axis:
    """A field of the points, and its title."""

    key: str
    title: str
    scale: float = 1.0  # values are divided by it

    @property
    def percent(self) -> bool:
        """Whether values are shares, shown in per cent."""
        return self.scale == 0.01


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart, in the panel (row, column)."""

    row: str
    column: str
    series: str
    rounds: Floats  # (R,)
    mean: Floats  # (R,)
    half: Floats  # (R,), of the 95% interval; NaN with fewer than three seeds
    seeds: int
    algorithm: str  # decides the colour


ROUNDS = Axis("round", "communication rounds")
BYTES = [(1024.0**i, f"{prefix}B") for i, prefix in enumerate(["", "Ki", "Mi", "Gi", "Ti", "Pi"])]
FLOPS = [(1000.0**i, f"{prefix}FLOPs") for i, prefix in enumerate(["", "k", "M", "G", "T", "P", "E"])]
SECONDS = [(1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours")]


class CostAxis(NamedTuple):
    """A cost that scores can be drawn against."""

    key: str  # the field of a record
    title: str
    units: Sequence[tuple[float, str]]  # with their sizes, from the smallest
    saving: str  # how a picture names less of it


COSTS = (  # a line here adds an axis to the page, the figures and TensorBoard
    CostAxis(ROUNDS.key, ROUNDS.title, [(1.0, "")], "fewer rounds"),
    CostAxis("upload_bytes", "upload of all clients", BYTES, "less upload"),
    CostAxis("download_bytes", "download of all clients", BYTES, "less download"),
    CostAxis("flops", "computation of all clients", FLOPS, "less computation"),
    CostAxis("simulated_seconds", "simulated time", SECONDS, "less simulated time"),
    CostAxis("seconds", "wall-clock time", SECONDS, "less time"),
)
SCORES = (Axis(ACCURACY, "test accuracy (%)", 0.01), Axis("loss", "test loss"), Axis("train_loss", "training loss"))
DRIFT = (
    Axis("cosine", "mean pairwise cosine distance of client models"),
    Axis("update_cosine", "mean pairwise cosine distance of client updates"),
    Axis("error", "perturbation ‖e_t‖, equation (2)"),
    Axis("bound", "bound of ‖e_t‖, equation (3), with estimated constants"),
    Axis("gradient", "norm of the mean gradient"),
    Axis("largest", "largest norm of a gradient"),
    Axis("smoothness", "observed smoothness"),
    Axis("heterogeneity", "heterogeneity of clients' gradients"),
    Axis("noise", "noise of minibatch gradients"),
)


def curve(
    runs: Sequence[RunData],
    value: Callable[[Record], float | None],
    *,
    row: str,
    column: str,
    series: str,
    algorithm: str | None = None,
) -> Curve:
    """Average runs that differ in their seed, at the rounds where all of them have a value.

    `algorithm` decides the colour; by default it is that of the runs.
    """
    rounds, values = over_seeds(runs, value)
    if not rounds.size:
        raise RunFolderError(f"{runs[0].path} has nothing to draw: its records lack what this picture shows")
    owner = str(runs[0].config.algorithm["name"]) if algorithm is None else algorithm
    return Curve(row, column, series, rounds, values.mean(axis=0), confidence(values), len(runs), owner)


def curves_csv(curves: Sequence[Curve], heading: str, names: tuple[str, str, str, str]) -> str:
    """Write the numbers of a chart; `names` are those of row, column, series and value."""
    header = (*names[:3], "seeds", "round", names[3], "low", "high")
    rows = []
    for line in curves:
        for at, mean, half in zip(line.rounds.tolist(), line.mean.tolist(), line.half.tolist(), strict=True):
            band = ("", "") if np.isnan(half) else (mean - half, mean + half)
            values = (line.row, line.column, line.series, line.seeds, int(at), mean, *band)
            rows.append(dict(zip(header, values, strict=True)))
    return f"# {' '.join(heading.split())}\n{numbers_csv(rows)}"


def cost_axes(lines: Sequence[Line]) -> list[Axis]:
    """Return the costs that all seeds of at least one line have, each in the unit that suits the largest value."""
    axes = []
    for key, title, units, _ in COSTS:
        totals = [values for line in lines if (values := _values(line, Axis(key, title))[1]).size]
        if totals:
            size, unit = unit_for(max(float(values.max()) for values in totals), units)
            axes.append(Axis(key, f"{title} ({unit})" if unit else title, size))
    return axes


def unit_for(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the size and the name of the largest unit that is not larger than `largest`, or else the first.

    >>> unit_for(3e6, BYTES), unit_for(2e12, FLOPS)
    ((1048576.0, 'MiB'), (1000000000000.0, 'TFLOPs'))
    """
    return [unit for unit in units if unit[0] <= largest or unit is units[0]][-1]


AS_MUCH = {"fewer": "many", "less": "much"}


def saving(x: Axis, ratio: float) -> str:
    """Say how much less of a cost was needed.

    >>> saving(ROUNDS, 1.58), saving(Axis("flops", ""), 0.5)
    ('1.6x fewer rounds', '2.0x as much computation')
    """
    less = next(cost.saving for cost in COSTS if cost.key == x.key)
    fewer, _, what = less.partition(" ")
    return f"{ratio:.1f}x {less}" if ratio >= 1 else f"{1 / ratio:.1f}x as {AS_MUCH[fewer]} {what}"


def scores_of(lines: Sequence[Line]) -> tuple[Axis, ...]:
    """Return SCORES; if all runs have the same metric of their own, it takes the place of the accuracy."""
    metrics = {run.metric for line in lines for run in line.runs}
    metric = metrics.pop() if len(metrics) == 1 else ACCURACY
    return SCORES if metric == ACCURACY else (Axis(ACCURACY, f"test {metric}"), *SCORES[1:])


def measured(axes: Sequence[Axis], lines: Sequence[Line]) -> list[Axis]:
    """Return the axes, of SCORES or DRIFT, that all seeds of at least one line measured."""
    return [axis for axis in axes if any(_values(line, axis)[0].size for line in lines)]


def drift_of(record: Record) -> dict[str, float]:
    """Return the measures of drift in a record, without names that DRIFT does not have."""
    drift: dict[str, float] = record.drift or {}
    return {axis.key: drift[axis.key] for axis in DRIFT if axis.key in drift}


def points(lines: Iterable[Line], costs: Sequence[Axis], scores: Sequence[Axis]) -> list[Point]:
    """Return a point for each line and round: mean costs, and mean, low and high of each score, as far as measured."""
    found: dict[tuple[int, int], Point] = {}
    for i, line in enumerate(lines):
        for axis in scores:
            rounds, values = _values(line, axis)
            for t, mean, half in zip(rounds, values.mean(axis=0), confidence(values), strict=True):
                point = found.setdefault((i, int(t)), {"algorithm": line.label, "seeds": len(line.runs)})
                fields = interval_fields(axis.key, mean, half, 100.0 if axis.percent else np.inf)
                point |= {key: _rounded(value) for key, value in fields.items()}
        for axis in costs:
            rounds, values = _values(line, axis)
            for t, mean in zip(rounds.astype(int).tolist(), values.mean(axis=0), strict=True):
                if (i, t) in found:
                    found[i, t][axis.key] = t if axis.key == ROUNDS.key else _rounded(mean)
    return [found[at] for at in sorted(found)]


def interval_fields(key: str, mean: float, half: float, most: float = np.inf) -> Point:
    """Return the fields of a point for a mean and, where there is one, its interval, within what is possible.

    `most` is the largest possible value; where there is one, the smallest is 0.
    """
    if np.isnan(half):
        return {key: mean}
    least = -np.inf if np.isinf(most) else 0.0
    return {key: mean, f"{key}_low": max(mean - half, least), f"{key}_high": min(mean + half, most)}


def _values(line: Line, axis: Axis) -> tuple[Floats, Floats]:
    """Return the rounds (R,) at which every seed has this value, and the values (seeds, R)."""
    rounds, values = over_seeds(line.runs, lambda r: getattr(r, axis.key, (r.drift or {}).get(axis.key)))
    return rounds, values / axis.scale


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
