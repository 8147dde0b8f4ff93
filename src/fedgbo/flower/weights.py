"""The mean by numbers of samples, for those who want it: no client can buy itself more than a bounded say."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch

from fedgbo.core.state import State
from fedgbo.engines.serial import ClientResult

MOST = 10  # times the median: a client that says it has more samples counts as if it had these


def shares(samples: Sequence[int]) -> list[float]:
    """Return each client's weight, with a mean of 1.

    >>> shares([1, 3])
    [0.5, 1.5]
    >>> shares([2, 2, 2, 10**9])[-1] < 3.1
    True
    """
    most = MOST * median(samples)
    bounded = [min(count, most) for count in samples]
    return [count * len(bounded) / sum(bounded) for count in bounded]


def weighted(results: Iterable[ClientResult], weights: Sequence[float]) -> Iterator[ClientResult]:
    """Yield the updates, in float64, times their weights: the plain mean of these is the weighted one."""
    for result, weight in zip(results, weights, strict=True):
        up = result.up.to(torch.float64)
        scaled = State(up.params * weight, {name: stat * weight for name, stat in up.stats.items()})
        yield replace(result, up=scaled)
