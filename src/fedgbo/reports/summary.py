"""The numbers of the paper's Table 4: best accuracy, what it took to reach it, and what it took to match FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from fedgbo.reports.load import Floats, Group

ROUNDING = 1e-9  # far below one test sample's share: equal accuracies are equal, however their means were summed


@dataclass(frozen=True)
class Effort:
    """What it took to get somewhere, all clients together."""

    round: int
    upload_bytes: float
    flops: float


@dataclass(frozen=True)
class Row:
    """One algorithm's line."""

    label: str
    seeds: int
    accuracy: float  # the highest mean over seeds
    interval: float | None  # half of its 95% confidence interval; None with a single seed
    best: Effort  # to reach it
    match: Effort | None  # to match the baseline's best; None if never


def confidence(values: Floats) -> Floats:
    """Return half of the 95% Student's t interval of the mean over the first axis; NaN with a single value."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    half: Floats = stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def summarise(groups: Sequence[Group], baseline: str = "fedavg") -> list[Row]:
    """Return a row for each group; `match` is against the baseline's best accuracy, where there is a baseline."""
    target = next((float(g.accuracy.mean(axis=0).max()) for g in groups if g.label == baseline), None)
    return [_row(group, target) for group in groups]


def _row(group: Group, target: float | None) -> Row:
    mean = group.accuracy.mean(axis=0)
    best = int(mean.argmax())
    half = float(confidence(group.accuracy)[best])
    reached = np.flatnonzero(mean >= target - ROUNDING) if target is not None else np.array([], dtype=np.int64)
    return Row(
        label=group.label,
        seeds=len(group.runs),
        accuracy=float(mean[best]),
        interval=None if np.isnan(half) else half,
        best=_effort(group, best),
        match=_effort(group, int(reached[0])) if reached.size else None,
    )


def _effort(group: Group, at: int) -> Effort:
    return Effort(int(group.rounds[at]), group.cost("upload_bytes", at), group.cost("flops", at))
