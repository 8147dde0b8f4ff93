"""Rounds that an engine runs several at once, before they are asked for: when that is possible, and what comes of it.

Nothing but the clock can tell. A round's clients, and all that is random, are named by the round; the algorithm is a
handful of pure functions; and every round's state is kept until the run comes to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.linear import linear
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.state import State

Cohorts = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # (rounds, clients of each)


class Played(NamedTuple):
    """A round that was run ahead."""

    after: State
    loss: float
    samples: int
    download_bytes: int
    upload_bytes: int
    server_seconds: float  # of the time it took, the server's


@runtime_checkable
class LooksAhead(Protocol):
    """An engine that may run several rounds at once."""

    def ahead(self, algorithm: FederatedAlgorithm, server: State, cohorts: Cohorts, steps: int, t: int) -> list[Played]:
        """Run the rounds from t on with these cohorts, K the same for all clients; as many as it can, maybe none."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A round in a few numbers: clients descend, and each of the server's vectors becomes keep itself + take mean."""

    optimiser: Optimiser  # of the clients
    keep: Tensor  # (V,), for the model and each statistic
    take: Tensor  # (V,)


def recurrence(algorithm: FederatedAlgorithm, stats: tuple[str, ...], steps: int, length: int) -> Recurrence | None:
    """Find the numbers of the algorithm's rounds by asking it; None if there is more to them."""
    optimiser, sums = _descends(algorithm, stats), linear(algorithm, stats, (), float(steps), length)
    if optimiser is None or sums is None or sums.stats != stats:
        return None
    keep, take = sums.factors[:, :-1].diagonal().contiguous(), sums.factors[:, -1].contiguous()
    alone = torch.equal(sums.factors[:, :-1], keep.diag())
    exact = (keep.abs() == 1) & (take.abs() == 1) | (keep == 0) | (take == 0)  # no product rounds before the sum does
    return Recurrence(optimiser, keep, take) if alone and bool(exact.all()) else None


def _descends(algorithm: FederatedAlgorithm, stats: Sequence[str]) -> Optimiser | None:
    """Return the optimiser, if clients get the whole state, descend once with it, and send up how far they came.

    One answer does not tell what another state would be answered, so this is for functions that are written here.
    """
    functions = (type(algorithm).broadcast, type(algorithm).client_update)
    if not all(function.__module__.startswith("fedgbo.") for function in functions):
        return None
    numbers = torch.randn(1 + len(stats), 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    server = State(numbers[0], dict(zip(stats, numbers[1:], strict=True)))
    client = _Descending()
    try:
        down = algorithm.broadcast(server)
        up = algorithm.client_update(down, client)
    except NotImplementedError:  # it asks for something else
        return None
    if down is not server or client.asked != [(id(server.params), id(server.stats))] or up.stats:
        return None
    return client.optimiser if torch.equal(up.params, server.params - server.params.sin()) else None


class _Descending(Client):
    """Comes to the sine of where it began, and notes who sent it there."""

    steps = 1

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.optimiser: Optimiser | None = None

    def gradient(self, params: Tensor) -> Tensor:
        """Refuse."""
        raise NotImplementedError

    full_gradient = gradient

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Mapping[str, Tensor]) -> Tensor:
        """Return a place that no formula finds by itself."""
        self.asked.append((id(params), id(stats)))
        self.optimiser = optimiser
        return params.sin()
