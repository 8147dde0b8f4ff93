"""The engine for a linear model on sparse samples: a whole cohort in a few calls of a compiled kernel."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.objective import Proximal
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.random import name_of
from fedgbo.core.state import State
from fedgbo.data.samples import Samples, SparseSamples
from fedgbo.engines.affine import affine, full, is_multiple, simple
from fedgbo.engines.ahead import Cohorts, Played, Recurrence, recurrence
from fedgbo.engines.layers.native import library
from fedgbo.engines.mean import WORTH_LOADING, ExactSum
from fedgbo.engines.serial import CohortResult, SerialEngine
from fedgbo.engines.sparse_arrays import Array, Rows, Step, Table
from fedgbo.engines.sparse_client import CohortClient, OneByOne, Widened, pull_of
from fedgbo.engines.sparse_kernel import add_up, drift, room, train, train_alone
from fedgbo.engines.sparse_rounds import play
from fedgbo.engines.sparse_score import score

BLOCK = 256  # clients whose moves are held at once: bounds memory when a cohort is large
CHUNK = 16_384  # test samples at once
AHEAD_BYTES = 4 * 2**20  # of states of rounds that were run ahead
AHEAD_SAMPLES = 100_000  # that are trained on ahead: some 20 ms, in which nothing else happens
TICKS = 1_000 if os.name == "nt" else 1_000_000  # of the C library's clock in a second
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
        self._multiple: dict[type[Optimiser], bool] = {}  # of optimisers whose step was checked to be affine
        self._last: tuple[Optimiser, tuple[str, ...], tuple[float, float] | None] | None = None
        self._rule: tuple[FederatedAlgorithm, tuple[str, ...], int, Recurrence | None] | None = None
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
        # in float64, so that x - (x - mean difference) keeps the digits of the difference
        start = State(down.params.to(torch.float64), Widened(down.stats))
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

    def ahead(self, algorithm: FederatedAlgorithm, server: State, cohorts: Cohorts, steps: int, t: int) -> list[Played]:
        """Run the rounds from t on in one compiled call, where each comes down to a few numbers.

        Only for small cohorts, which one thread trains, in one process, and where the server by itself would add up in
        C: so the bits are those of one round at a time.
        """
        (rounds, count), batch, x = cohorts.shape, self.task.batch_size or 0, server.params
        alike = all(stat.dtype == x.dtype and stat.shape == x.shape for stat in server.stats.values())
        enough = x.numel() >= WORTH_LOADING and library() is not None
        if not alike or not enough or server.nbytes * rounds > AHEAD_BYTES or count > BLOCK or self.plain.team.size > 1:
            return []
        clients = np.array(cohorts)
        sizes = np.full_like(clients, batch) if batch else self.offsets[clients + 1] - self.offsets[clients]
        samples = (steps * sizes).sum(axis=1)
        soon = int(np.searchsorted(samples.cumsum(), AHEAD_SAMPLES))
        if soon == 0 or (len(self.tables) > 1 and samples.max() >= WORTH_THREADS):
            return []
        clients = clients[:soon]
        known = self._recurrence(algorithm, server, steps)
        return [] if known is None else self._play(*known, pull_of(algorithm.terms), server, clients, samples, steps, t)

    def _play(
        self,
        rule: Recurrence,
        numbers: tuple[float, float],
        pull: float,
        server: State,
        clients: Array,
        samples: Array,
        steps: int,
        t: int,
    ) -> list[Played]:
        (rounds, count), length, (share, scale) = clients.shape, server.params.numel(), numbers
        names = np.array([name_of(self.seed, "batches", t + r) for r in range(rounds)], np.uint64)
        vectors = torch.empty((rounds + 1, len(rule.keep), length), dtype=server.params.dtype)
        torch.stack([server.params, *server.stats.values()], out=vectors[0])
        losses = np.empty((rounds, count))
        work = (self.offsets, clients, np.full(count, steps), self.task.batch_size or 0, names)
        step = (share, full(length, scale).numpy(), pull)
        sums = (rule.keep.numpy(), rule.take.numpy())
        done, ticks = play(self.tables[0], self.train_rows, *work, *step, *sums, vectors.numpy(), losses)
        means = losses.sum(axis=1) / count
        down, up = server.nbytes * count, server.params.nbytes * count
        played = []
        for r in range(done):
            params, *stats = vectors[r + 1].unbind()
            after = State(params, dict(zip(server.stats, stats, strict=True)))
            if r == done - 1:
                after = after.clone()  # so that nobody holds the others while the next are run, in the same memory
            played.append(Played(after, float(means[r]), int(samples[r]), down, up, ticks / TICKS / done))
        return played

    def _recurrence(
        self, algorithm: FederatedAlgorithm, server: State, steps: int
    ) -> tuple[Recurrence, tuple[float, float]] | None:
        """Return a round in numbers, if that can be done: the algorithm's, and the two of its optimiser's step."""
        names = tuple(server.stats)
        if self._rule is None or self._rule[0] is not algorithm or self._rule[1:3] != (names, steps):
            self._rule = algorithm, names, steps, recurrence(algorithm, names, steps, server.params.numel())
        rule = self._rule[3]
        if rule is None or not self._is_multiple(rule.optimiser, server.params, Widened(server.stats)):
            return None
        numbers = self._numbers(rule.optimiser, names)
        return None if numbers is None else (rule, numbers)

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
        if team.size > 1:
            total, found = self._joined(exact, found, len(clients))
        else:
            total = np.add(exact[0], exact[1], out=exact[0])
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
        multiple = self._is_multiple(optimiser, params, stats)
        if multiple and isinstance(stats, Widened) and (numbers := self._numbers(optimiser, tuple(stats))):
            share, scale = numbers
            offset = next(iter(stats.own.values()), self.initial_params)  # any vector will do where the share is 0
            return Step(params.numpy(), offset.numpy(), share, full(params.numel(), scale).numpy(), pull)
        step = None if multiple is None else affine(optimiser, params, stats, check=False)
        return None if step is None else Step(params.numpy(), step.offset.numpy(), 1.0, step.scale.numpy(), pull)

    def _is_multiple(self, optimiser: Optimiser, params: Tensor, stats: Stats) -> bool | None:
        """Return whether two numbers may tell the step; None if it is not affine. The formula is checked once."""
        kind = type(optimiser)
        if kind not in self._multiple:
            if affine(optimiser, params.to(torch.float64), stats) is None:
                return None
            self._multiple[kind] = is_multiple(optimiser, tuple(stats), params.numel())
        return self._multiple[kind]

    def _numbers(self, optimiser: Optimiser, stats: tuple[str, ...]) -> tuple[float, float] | None:
        """Return the two numbers of the optimiser's step, worked out once."""
        if self._last is None or self._last[0] is not optimiser or self._last[1] != stats:
            self._last = optimiser, stats, simple(optimiser, stats)
        return self._last[2]

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
