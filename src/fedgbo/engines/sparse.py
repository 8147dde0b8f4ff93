"""The engine for a linear model on sparse samples: a whole cohort in a few calls of a compiled kernel."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.objective import Proximal
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.random import name_of
from fedgbo.core.state import State
from fedgbo.data.samples import Samples
from fedgbo.data.sparse import SparseSamples
from fedgbo.engines.affine import Affine, affine
from fedgbo.engines.mean import ExactSum
from fedgbo.engines.serial import CohortResult, SerialEngine
from fedgbo.engines.sparse_arrays import Array, Rows, Step, Table
from fedgbo.engines.sparse_kernel import add_up, drift, room, train, train_alone
from fedgbo.engines.sparse_score import score

BLOCK = 256  # clients whose moves are held at once: bounds memory when a cohort is large
CHUNK = 16_384  # test samples at once
WORTH_THREADS = 8_000  # samples to train on, from which waking another thread pays


class SparseEngine:
    """Trains clients through `sparse_kernel`; what that does not cover, it leaves to the plain engine.

    The algorithm is asked once a round, with a client that answers for the whole cohort (`FederatedAlgorithm.affine`).
    Bits do not depend on the number of workers: each client's moves are added to the sum in the order of clients.
    """

    def __init__(self, plain: SerialEngine, workers: int | None = None) -> None:
        self.plain = plain
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.initial_params, self.sample = plain.initial_params, plain.sample
        self._known: set[type[Optimiser]] = set()  # whose step was checked to be affine
        self._last: Optimiser | None = None  # without statistics
        self._constant: Affine | None = None  # its step, which stays since there are no statistics
        data = self.task.data
        self.train_rows, self.test_rows = _rows(data.train), _rows(data.test)
        self.offsets = _frozen(data.offsets, np.int64)
        self.features, self.classes = _shape(plain)
        workers = workers or os.cpu_count() or 1
        self.tables = [_table(self.features, self.classes) for _ in range(workers)]
        self.threads = ThreadPoolExecutor(max(1, workers - 1))  # starts none before it is asked

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        start = down.to(torch.float64)  # so that x - (x - mean difference) keeps the digits of the difference
        client = CohortClient(self, algorithm, start, cohort, steps, t)
        try:
            up = algorithm.client_update(start, client)
        except OneByOne:
            return self.plain.train(algorithm, down, cohort, steps, t)
        return CohortResult(
            sent=up,
            steps=sum(steps) / len(steps),
            loss=client.mean_loss(),
            samples=client.samples,
            download_bytes=down.nbytes * len(cohort),
            upload_bytes=up.numel * down.params.element_size() * len(cohort),
        )

    def moves(self, step: Step, clients: Array, steps: Array, batch: int, skipped: int, t: int) -> tuple[Array, Array]:
        """Return the sum over clients of x - y_K, and each client's mean loss.

        Of the clients, this process trains its share. The part of the sum that no sample has a say in is the same for
        all processes, and is added last by each.
        """
        name, team = np.uint64(name_of(self.seed, "batches", t)), self.plain.team
        own, own_steps = np.ascontiguousarray(clients[team.mine]), np.ascontiguousarray(steps[team.mine])
        exact, losses = np.zeros((2, len(step.start))), []
        for begin in range(0, len(own), BLOCK):
            block = slice(begin, begin + BLOCK)
            work = (self.offsets, own[block], own_steps[block], batch, skipped, name)
            if len(self.tables) == 1 or self.visits(*work[1:4]) < WORTH_THREADS:
                losses.append(train_alone(self.tables[0], self.train_rows, step, *work, exact))
            else:
                losses.append(self._train_together(step, work, exact))
        found = losses[0] if len(losses) == 1 else np.concatenate([np.empty(0), *losses])
        total, found = self._joined(exact, found, len(clients)) if team.size > 1 else (exact[0] + exact[1], found)
        drift(step, steps, total)
        return total, found

    def _joined(self, exact: Array, losses: Array, count: int) -> tuple[Array, Array]:
        """Return the sum over the clients of all processes, and the losses of all `count` of them."""
        rows = self.plain.team.rows(losses[:, None], count, 1)
        moved = ExactSum(*torch.from_numpy(exact))
        self.plain.team.add_up([moved])
        return moved.value().numpy(), np.array(rows)[:, 0]

    def step_of(self, optimiser: Optimiser, params: Tensor, stats: Stats, pull: float) -> Step | None:
        """Return the step that all clients take with these statistics; None if it is not affine."""
        step = self._constant if not stats and optimiser == self._last else None
        step = step or affine(optimiser, params, stats, check=type(optimiser) not in self._known)
        if step is None:
            return None
        self._known.add(type(optimiser))
        if not stats:
            self._last, self._constant = optimiser, step
        return Step(params.numpy(), step.offset.numpy(), step.scale.numpy(), pull)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        weights, starts = params.double().numpy(), range(0, len(self.test_rows.labels), CHUNK)
        parts = (self._score(weights, start) for start in self.plain.team.share(starts))
        return self.plain.scores(parts, len(starts))

    def _score(self, weights: Array, start: int) -> tuple[float, float]:
        """Return what the chunk of test samples from `start` on adds to the mean loss and to the mean metric."""
        test = self.test_rows
        targets = torch.from_numpy(test.labels[start : start + CHUNK].astype(np.int64))
        outputs = torch.empty(len(targets), self.classes, dtype=self.model.params.dtype)
        score(test, weights, outputs.numpy(), start)
        return self.plain.parts(outputs, targets)

    def visits(self, clients: Array, steps: Array, batch: int) -> int:
        """How many samples these clients train on, each counted as often as it is used."""
        sizes = batch or self.offsets[clients + 1] - self.offsets[clients]
        return int((steps * sizes).sum())

    def _train_together(self, step: Step, work: tuple[Any, ...], exact: Array) -> Array:
        moved = room(self.train_rows, self.offsets, work[1], self.classes)
        workers = len(self.tables)
        shares = [(self.tables[w], w, workers, self.train_rows, step, moved, *work) for w in range(workers)]
        others = [self.threads.submit(train, *share) for share in shares[1:]]
        train(*shares[0])
        for other in others:
            other.result()
        add_up(moved, exact)
        return moved.losses


class OneByOne(Exception):  # noqa: N818 - not an error: the plain engine takes over
    """The mean of the clients cannot answer this; ask them one by one."""


class CohortClient(Client):
    """Answers for a whole cohort with the mean of its clients' answers, in float64."""

    def __init__(
        self,
        engine: SparseEngine,
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
        pull = float(sum(term.mu for term in self._terms if isinstance(term, Proximal)))
        step = self._engine.step_of(optimiser, params, stats, pull)
        if step is None:
            raise OneByOne
        total, losses = self._moves(step, self.all_steps, self._engine.task.batch_size or 0)
        self._losses.append((losses, self.all_steps))
        self._skipped = -1  # clients with unequal K have come to unequal places of their walks
        return params - torch.from_numpy(total) / len(self.clients)

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
        plain = Step(params.numpy(), np.zeros(len(params)), np.ones(len(params)), 0.0)
        total, losses = self._moves(plain, np.ones_like(self.all_steps), batch)
        return torch.from_numpy(total) / len(self.clients), losses

    def _moves(self, step: Step, steps: Array, batch: int) -> tuple[Array, Array]:
        if self._skipped < 0:
            raise OneByOne
        self.samples += self._engine.visits(self.clients, steps, batch)
        return self._engine.moves(step, self.clients, steps, batch, self._skipped, self._round)


def takes(plain: SerialEngine, algorithm: FederatedAlgorithm) -> bool:
    """Return whether the kernel covers the algorithm and can trust the data, in which it does not look for errors."""
    speaks_for_itself = "affine" in vars(type(algorithm))
    if not speaks_for_itself or not algorithm.affine or any(type(term) is not Proximal for term in algorithm.terms):
        return False
    data = plain.task.data
    within = data.offsets[0] >= 0 and data.offsets[-1] <= len(data.train) and bool((np.diff(data.offsets) > 0).all())
    sound = within and all(_sound(samples, _shape(plain)[0]) for samples in (data.train, data.test))
    return sound and plain.model.params.dtype in (torch.float32, torch.float64)


def _sound(samples: Samples, features: int) -> bool:
    """Return whether the rows follow each other and their features are the model's."""
    if not isinstance(samples, SparseSamples):
        return False
    arrays = (samples.indptr, samples.indices, samples.counts, samples.labels)
    if not all(np.issubdtype(array.dtype, np.integer) for array in arrays):
        return False
    starts = range(0, len(samples), CHUNK)  # in chunks, for the data may be larger than memory
    rising = samples.indptr[0] == 0 and all((np.diff(samples.indptr[at : at + CHUNK + 1]) >= 0).all() for at in starts)
    indices = samples.indices
    return rising and (len(indices) == 0 or bool(indices.min() >= 0 and indices.max() < features))


def _shape(plain: SerialEngine) -> tuple[int, int]:
    """Return the numbers of features and classes."""
    weight, _ = plain.model.module.parameters()
    return weight.shape[1], weight.shape[0]


def _rows(samples: Samples) -> Rows:
    if not isinstance(samples, SparseSamples):
        raise TypeError(f"expected SparseSamples, not {type(samples).__name__}")
    return Rows(
        indptr=_frozen(samples.indptr, np.int64),
        indices=_frozen(samples.indices),
        counts=_frozen(samples.counts),
        labels=_frozen(samples.labels),
    )


def _frozen(array: Array, kind: type[np.generic] | None = None) -> Array:
    """Return a plain, read-only array: mapped from a file or not, numba then sees one type and compiles once."""
    plain = np.require(np.asarray(array), kind, ["C", "A"]).view()
    plain.flags.writeable = False
    return plain


def _table(features: int, classes: int) -> Table:
    rows = features + 1  # the bias is one more feature
    return Table(np.full(rows, -1), np.empty(rows, np.int64), np.empty((rows, 4, classes)))
