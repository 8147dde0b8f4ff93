"""The numbers of the paper's Table 4: best accuracy, what it took to reach it, and what it took to match FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgbo.reports.load import Group
from fedgbo.reports.paired import Paired, confidence, paired

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
    versus: Paired | None = None  # its best accuracy minus the baseline's, seed by seed; None without common seeds


def summarise(groups: Sequence[Group]) -> list[Row]:
    """Return a row for each group; `match` and `versus` are against the baseline's best, where there is a baseline."""
    baseline = baseline_of(groups)
    return [_row(group, baseline) for group in groups]


def baseline_of(groups: Sequence[Group]) -> Group | None:
    """Return FedAvg's group or, if there are several with different settings, the one that got furthest."""
    plain = [group for group in groups if group.runs[0].config.algorithm["name"] == "fedavg"]
    return max(plain, key=lambda group: float(group.accuracy.mean(axis=0).max()), default=None)


def best_of(group: Group) -> int:
    """Return which evaluation has the highest mean accuracy."""
    return int(group.accuracy.mean(axis=0).argmax())


def _row(group: Group, baseline: Group | None) -> Row:
    mean, best = group.accuracy.mean(axis=0), best_of(group)
    half = float(confidence(group.accuracy)[best])
    reached = np.array([], dtype=np.int64)
    if baseline is not None:
        reached = np.flatnonzero(mean >= baseline.accuracy.mean(axis=0).max() - ROUNDING)
    return Row(
        label=group.label,
        seeds=len(group.runs),
        accuracy=float(mean[best]),
        interval=None if np.isnan(half) else half,
        best=_effort(group, best),
        match=_effort(group, int(reached[0])) if reached.size else None,
        versus=None if baseline is None or baseline is group else _versus(group, baseline),
    )


def _versus(group: Group, baseline: Group) -> Paired | None:
    ours, theirs = (
        dict(zip((run.config.seed for run in g.runs), g.accuracy[:, best_of(g)], strict=True))
        for g in (group, baseline)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    return paired(np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])) if seeds else None


def _effort(group: Group, at: int) -> Effort:
    return Effort(int(group.rounds[at]), group.cost("upload_bytes", at), group.cost("flops", at))
