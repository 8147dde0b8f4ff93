"""Several clients at once, each on one core, in threads: torch and our C code release Python's lock while they compute.

Five clients on two cores would leave one core idle while the fifth is trained. So one of them begins first, pauses
halfway while the other four are trained, and resumes at the end (McNaughton's rule for preemptive scheduling). What a
client computes does not depend on it. With fewer clients than cores, some cores are idle.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import IntEnum
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from fedgbo.core import FederatedAlgorithm, State, Upload
from fedgbo.engines.batches import Pause
from fedgbo.engines.engine import Gathered, Round, gather
from fedgbo.engines.evaluate import Chunk, OwnModels, Piece, Scores
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.plain import PlainEngine

T = TypeVar("T")


class Turn(IntEnum):
    """The order in which waiting threads get a core."""

    BEFORE = 0  # clients that will pause halfway
    WHOLE = 1
    AFTER = 2  # clients that paused


class Cores:
    """Lets a fixed number of threads compute at a time; the others wait, ordered by Turn and then by arrival.

    A core passes directly to the next thread, so that no other thread wakes up for it.
    """

    def __init__(self, cores: int) -> None:
        self._free = cores  # 0 while threads wait
        self._waiting: list[tuple[Turn, int, threading.Lock]] = []
        self._numbers = count()
        self._lock = threading.Lock()

    def take(self, turn: Turn) -> None:
        """Wait for a core."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            closed = threading.Lock()
            closed.acquire()
            heappush(self._waiting, (turn, next(self._numbers), closed))
        closed.acquire()  # until `give` opens it

    def give(self) -> None:
        """Pass the core on."""
        with self._lock:
            if self._waiting:
                heappop(self._waiting)[2].release()
            else:
                self._free += 1

    @contextmanager
    def one(self, turn: Turn) -> Iterator[None]:
        """Compute on one core."""
        self.take(turn)
        try:
            yield
        finally:
            self.give()


def pauses(clients: int, cores: int) -> list[float]:
    """Return after which part of its local steps each of the last few clients pauses for the others.

    Laid end to end and cut into equal parts, one for each core, the clients fill the cores evenly. A client that is cut
    has its end on one core and its beginning on the next one, where it is the first.

    >>> pauses(5, cores=2), pauses(4, cores=2), pauses(5, cores=4)
    ([0.5], [], [0.25, 0.5, 0.75])
    """
    if clients <= cores:
        return []
    before_cut = [clients * core % cores / cores for core in range(1, cores)]
    return sorted(1 - part for part in before_cut if part)


class ThreadedEngine:
    """Does what the plain engine does, for as many clients at a time as there are workers.

    Each client that has begun has a model of its own. Results are taken in ascending order of clients, so that bits do
    not depend on the number of workers. No more clients are begun than can be held, so that memory does not grow with
    the cohort.
    """

    def __init__(self, plain: PlainEngine, algorithm: FederatedAlgorithm, workers: int, cohort_size: int) -> None:
        self.plain, self.workers = plain, workers
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.origin, self.sample, self.scorer = plain.origin, plain.sample, plain.scorer
        self.choice = plain.choice.replace("one client at a time", f"{workers} clients at a time, one thread each")
        self._most = len(pauses(cohort_size, workers))  # clients that pause at the same time
        one = partial(torch.set_num_threads, 1)  # a setting of each thread's own
        self._threads = ThreadPoolExecutor(2 * workers + self._most, "fedgbo-client", initializer=one)
        self._cores = Cores(workers)  # half of the threads wait for one, so that no core waits for a thread
        self._free: SimpleQueue[FlatModel] = SimpleQueue()
        self._free.put(plain.model)
        for _ in range(workers + self._most - 1):
            self._free.put(plain.new_model(algorithm.terms))

    def train(self, work: Round) -> Gathered:
        order = list(zip(work.cohort, work.steps, strict=True))
        with closing(self.uploads(work, order)) as uploads:
            return gather(uploads, work, self.task.data.clients)

    def uploads(self, work: Round, order: Sequence[tuple[int, int]]) -> Generator[Upload, None, None]:
        """Yield what clients send, in their order. The last few begin first, and pause halfway for the others."""

        def update(model: FlatModel, who: tuple[Any, ...]) -> Upload:
            return self.plain.train_client(model, work, *who)

        if not self.plain.watched and order:  # alone, to see whether it draws from process-wide generators
            yield from self.plain.uploads(work, order[:1])
            order = order[1:]
        if self.plain.draws:
            yield from self.plain.uploads(work, order)
            return
        parts = pauses(len(order), self.workers)[: self._most]
        whole, cut = order[: len(order) - len(parts)], order[len(order) - len(parts) :]
        begun: deque[Future[Upload]] = deque()
        with self.plain.unshared_draws(), _finished(begun):
            for (client, k), part in zip(cut, parts, strict=True):
                pause = Pause(round(part * k), self._wait)
                begun.append(self._threads.submit(self._on_a_model, update, (client, k, pause), Turn.BEFORE))
            yield from self._each(update, whole)
            yield from _results(begun)

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        chunks = self.chunks(own_models)
        return self.scorer.scores(chunks, self.pieces(server, chunks, own_models))

    def chunks(self, own_models: OwnModels | None = None) -> Sequence[Chunk]:
        return self.plain.chunks(own_models)

    def pieces(self, server: State, chunks: Sequence[Chunk], own_models: OwnModels | None = None) -> Iterator[Piece]:
        if self.plain.scoring_draws:  # from generators that threads would share
            return self.plain.pieces(server, chunks, own_models)
        return self._each(lambda model, chunk: self.plain.score(model, server, chunk, own_models), chunks)

    def _each(self, work: Callable[[FlatModel, Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Yield work(model, item) for every item in order, a few of them under way at a time."""
        waiting: deque[Future[T]] = deque()
        with _finished(waiting):
            for item in items:
                yield from _results(waiting, but=2 * self.workers - 1)
                waiting.append(self._threads.submit(self._on_a_model, work, item))
            yield from _results(waiting)

    def _on_a_model(self, work: Callable[[FlatModel, Any], T], item: Any, turn: Turn = Turn.WHOLE) -> T:
        with self._cores.one(turn):
            model = self._free.get()
            try:
                return work(model, item)
            finally:
                self._free.put(model)

    def _wait(self) -> None:
        """Let the other clients compute first."""
        self._cores.give()
        self._cores.take(Turn.AFTER)


def _results(futures: deque[Future[T]], but: int = 0) -> Iterator[T]:
    """Take results from the left until `but` futures are left; a future stays until its result is there."""
    while len(futures) > but:
        result = futures[0].result()
        futures.popleft()
        yield result


@contextmanager
def _finished(futures: deque[Future[T]]) -> Iterator[None]:
    """After an error or Ctrl-C, cancel or wait for the futures, so that none goes on in the background."""
    try:
        yield
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
