"""What can be drawn: costs to the right, scores upwards, each as the mean over seeds with its confidence interval."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.reports.load import Floats, over_seeds
from fedgbo.reports.paired import confidence
from fedgbo.reports.sections import Line
from fedgbo.reports.units import unit_for
from fedgbo.runs.record import Record

DIGITS = 7  # significant ones of what is drawn
Point = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """A field of the points, and what is written beside it."""

    key: str
    title: str
    scale: float = 1.0  # values are divided by it


ROUNDS = Axis("round", "communication rounds")
COSTS = (
    (ROUNDS.key, ROUNDS.title, "count"),
    ("upload_bytes", "upload of all clients", "bytes"),
    ("download_bytes", "download of all clients", "bytes"),
    ("flops", "work on all clients", "flops"),
    ("seconds", "wall-clock time", "seconds"),
)
SCORES = (
    Axis("accuracy", "test accuracy (%)", 0.01),
    Axis("loss", "test loss"),
    Axis("train_loss", "training loss"),
)
DRIFT = {
    "cosine": "mean pairwise cosine distance of client models",
    "update_cosine": "mean pairwise cosine distance of client updates",
    "error": "perturbation ‖e_t‖, equation (2)",
    "bound": "its bound, equation (3), with estimated constants",
    "gradient": "norm of the mean gradient",
    "largest": "largest norm of a gradient",
    "smoothness": "smoothness that was seen",
    "heterogeneity": "heterogeneity of clients' gradients",
    "noise": "noise of minibatch gradients",
}


def cost_axes(lines: Sequence[Line]) -> list[Axis]:
    """Return the costs, each in the unit that suits the largest."""
    axes = []
    for key, title, kind in COSTS:
        largest = max(getattr(run.records[-1], key) for line in lines for run in line.runs)
        unit = unit_for(largest, kind)
        axes.append(Axis(key, f"{title} ({unit.name})" if unit.name else title, unit.size))
    return axes


def score_axes(lines: Sequence[Line]) -> list[Axis]:
    """Return the scores that at least one line has."""
    return [axis for axis in SCORES if any(curve(line, axis)[0].size for line in lines)]


def drift_axes(lines: Sequence[Line]) -> list[Axis]:
    """Return what all seeds of at least one line measured of clients' drift; nothing for most runs."""
    axes = [Axis(key, title) for key, title in DRIFT.items()]
    return [axis for axis in axes if any(curve(line, axis)[0].size for line in lines)]


def drift_of(record: Record) -> dict[str, float]:
    """Return the drift that a record has, if any: what DRIFT names, for a file may hold other names."""
    drift: dict[str, float] = record.drift or {}
    return {key: value for key, value in drift.items() if key in DRIFT}


def curve(line: Line, axis: Axis) -> tuple[Floats, Floats]:
    """Return the rounds (R,) at which every seed has this value, and the values (seeds, R)."""
    rounds, values = over_seeds(line.runs, lambda record: _value(record, axis.key))
    return rounds, values / axis.scale


def points(lines: Iterable[Line], costs: Sequence[Axis], scores: Sequence[Axis]) -> list[Point]:
    """Return a row for each line and round: means of costs, and mean, low and high of each score that is there."""
    return [point for line in lines for point in _points_of(line, costs, scores)]


def _points_of(line: Line, costs: Sequence[Axis], scores: Sequence[Axis]) -> Iterable[Point]:
    rows: dict[int, Point] = {}
    for axis in scores:
        rounds, values = curve(line, axis)
        if not rounds.size:
            continue
        for t, mean, half in zip(rounds, values.mean(axis=0), confidence(values), strict=True):
            row = rows.setdefault(int(t), {"algorithm": line.label, "seeds": len(line.runs)})
            row[axis.key] = _rounded(mean)
            if half == half:  # a single seed has no interval
                row |= {f"{axis.key}_low": _rounded(mean - half), f"{axis.key}_high": _rounded(mean + half)}
    for axis in costs:
        spent = [{record.round: getattr(record, axis.key) for record in run.records} for run in line.runs]
        for t, row in rows.items():
            row[axis.key] = t if axis.key == "round" else _rounded(np.mean([seed[t] for seed in spent]) / axis.scale)
    return [rows[t] for t in sorted(rows)]


def _value(record: Record, key: str) -> float | None:
    value: float | None = getattr(record, key) if hasattr(record, key) else drift_of(record).get(key)
    return value


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")
