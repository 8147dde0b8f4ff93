"""How good a curve is: one number for a setting, from the records of its runs."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from fedgbo.runs.record import Record

Kind = Literal["curve", "best", "last"]
"""curve: the mean over all rounds, the area under the curve, so that reaching a high accuracy early counts; best: the
highest, the paper's way; last: that of the last round."""


def score(runs: Iterable[Sequence[Record]], kind: Kind = "curve", warm_up: int = 0) -> float | None:
    """Return the mean over runs, by rounds, of what happened after the first `warm_up` rounds; None if nothing did.

    What is measured is the accuracy or, for a task without a metric, minus the loss. A run's first record is its start.
    """
    total, rounds = 0.0, 0
    for records in runs:
        points = [(record.round - max(before.round, warm_up), record) for before, record in pairwise(records)]
        points = [(weight, record) for weight, record in points if weight > 0]
        if points:
            length = sum(weight for weight, _ in points)
            total, rounds = total + length * _one(points, kind), rounds + length
    return total / rounds if rounds else None


def _one(points: Sequence[tuple[int, Record]], kind: Kind) -> float:
    values = [(weight, -record.loss if record.accuracy is None else record.accuracy) for weight, record in points]
    if kind == "best":
        return max(value for _, value in values)
    if kind == "last":
        return values[-1][1]
    return sum(weight * value for weight, value in values) / sum(weight for weight, _ in values)
