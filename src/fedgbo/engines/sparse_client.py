"""A client that stands for a whole cohort, and what it is given."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.objective import Proximal, Term
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.state import State
from fedgbo.engines.affine import full
from fedgbo.engines.sparse_arrays import Array, Step

if TYPE_CHECKING:
    from fedgbo.engines.sparse import SparseEngine


class Widened(Mapping[str, Tensor]):
    """Statistics in float64, each made when a formula asks for it."""

    def __init__(self, own: Stats) -> None:
        self.own = own
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return one of them."""
        if name not in self._made:
            self._made[name] = self.own[name].to(torch.float64)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self.own)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.own)


class OneByOne(Exception):  # noqa: N818 - not an error: the plain engine takes over
    """The mean of the clients cannot answer this; ask them one by one."""


class CohortClient(Client):
    """Answers for a whole cohort with the mean of its clients' answers, in float64."""

    def __init__(
        self,
        engine: "SparseEngine",
        algorithm: FederatedAlgorithm,
        down: State,
        cohort: Sequence[int],
        steps: Sequence[int],
        t: int,
    ) -> None:
        order = sorted(zip(cohort, steps, strict=True))  # the sum's order, and so its bits, are the clients'
        self.clients, self.all_steps = np.array(order, dtype=np.int64).T.copy()
        self.samples = 0
        self._engine, self._terms, self._round = engine, algorithm.terms, t
        self._start, self._skipped = down.params, 0
        self._losses: list[tuple[Array, Array]] = []  # means over some minibatches, and how many those were

    @property
    def steps(self) -> int:  # type: ignore[override]
        """K, if all clients have the same."""
        if (self.all_steps != self.all_steps[0]).any():
            raise OneByOne
        return int(self.all_steps[0])

    def gradient(self, params: Tensor) -> Tensor:
        """Return the mean of the clients' gradients at x_t, each on its next minibatch."""
        gradient, losses = self._gradient(params, self._engine.task.batch_size or 0)
        self._losses.append((losses, np.ones_like(self.all_steps)))
        self._skipped += 1
        return gradient

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the mean of the clients' gradients at x_t, each on all of its samples."""
        return self._gradient(params, 0)[0]

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        """Return the mean of the clients' y_K."""
        if params is not self._start:
            raise OneByOne
        step = self._engine.step_of(optimiser, params, stats, pull_of(self._terms))
        if step is None:
            raise OneByOne
        total, losses = self._moves(step, self.all_steps, self._engine.task.batch_size or 0)
        self._losses.append((losses, self.all_steps))
        self._skipped = -1  # clients with unequal K have come to unequal places of their walks
        return params - torch.from_numpy(total).div_(len(self.clients))

    def mean_loss(self) -> float:
        """Return the mean loss over clients and minibatches so far; raise if one is not finite."""
        if not self._losses:
            return 0.0
        losses = self._losses[0][0]
        if len(self._losses) > 1:
            losses = np.average([one for one, _ in self._losses], axis=0, weights=[many for _, many in self._losses])
        mean = float(losses.sum()) / len(losses)
        if not math.isfinite(mean):
            first = int(np.isfinite(losses).argmin())
            client, loss = self.clients[first], losses[first]
            raise DivergenceError(f"the training loss of client {client} is {loss} in round {self._round + 1}")
        return mean

    def _gradient(self, params: Tensor, batch: int) -> tuple[Tensor, Array]:
        """A gradient is how far one step of plain descent goes; the terms pull towards x_t, and so not at x_t."""
        if params is not self._start:
            raise OneByOne
        none, one = self._engine.initial_params, full(params.numel(), 1.0)
        plain = Step(params.numpy(), none.numpy(), 0.0, one.numpy(), 0.0)
        total, losses = self._moves(plain, np.ones_like(self.all_steps), batch)
        return torch.from_numpy(total).div_(len(self.clients)), losses

    def _moves(self, step: Step, steps: Array, batch: int) -> tuple[Array, Array]:
        if self._skipped < 0:
            raise OneByOne
        self.samples += self._engine.visits(self.clients, steps, batch)
        return self._engine.moves(step, self.clients, steps, batch, self._skipped, self._round)


def pull_of(terms: Sequence[Term]) -> float:
    """Return how strongly the terms of an objective, which are all Proximal here, pull towards x_t together."""
    return float(sum(term.mu for term in terms if isinstance(term, Proximal)))
