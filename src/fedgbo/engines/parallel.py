"""Several clients at once, each on one core, in threads: torch lets go of Python's lock while it computes."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.state import State
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.serial import ClientResult, CohortResult, Pause, SerialEngine, Work, gather
from fedgbo.engines.turns import Cores, Turn, pauses

T = TypeVar("T")


class ParallelEngine:
    """Does what the plain engine does, for as many clients at a time as there are workers.

    Each client that was begun has a model of its own. Results are taken in the order of clients, whoever is done first,
    so that bits do not depend on the number of workers; and no more clients are begun than can be held, so that memory
    does not grow with the cohort.
    """

    def __init__(self, plain: SerialEngine, algorithm: FederatedAlgorithm, workers: int) -> None:
        self.plain = plain
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.initial_params, self.sample = plain.initial_params, plain.sample
        self.workers = workers
        self._most = len(pauses(len(plain.team.share(range(plain.task.cohort_size))), workers))  # that wait halfway
        self._threads = ThreadPoolExecutor(2 * workers + self._most, "fedgbo-client")
        self._cores = Cores(workers)  # half of the threads wait for one: whole clients, before those that wait halfway
        self._free: SimpleQueue[FlatModel] = SimpleQueue()
        self._free.put(plain.model)
        for _ in range(workers + self._most - 1):
            model = FlatModel(plain.build_model(), plain.task.loss)
            model.specialise(plain.sample[0], algorithm.terms)
            self._free.put(model)

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        work = Work(algorithm, down, t)
        order = self.plain.team.share(sorted(zip(cohort, steps, strict=True)))
        with closing(self._clients(work, order)) as given:
            return gather(given, down, steps, self.plain.team)

    def _clients(self, work: Work, order: Sequence[tuple[int, int]]) -> Generator[ClientResult, None, None]:
        """Yield what clients give, in their order; the last few begin first, and wait halfway for the others."""

        def update(model: FlatModel, who: tuple[Any, ...]) -> ClientResult:
            return self.plain.train_client(model, work, *who)

        parts = pauses(len(order), self.workers)[: self._most]
        whole, cut = order[: len(order) - len(parts)], order[len(order) - len(parts) :]
        begun: deque[Future[ClientResult]] = deque()
        with finished(begun):
            for (client, k), part in zip(cut, parts, strict=True):
                pause = Pause(round(part * k), self._wait)
                begun.append(self._threads.submit(self._on_a_model, update, (client, k, pause), Turn.BEFORE))
            yield from self._each(update, whole)
            yield from results(begun)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        plain, starts = self.plain, self.plain.chunks()
        own = plain.team.share(starts)
        return plain.scores(self._each(lambda model, start: plain.score(model, params, start), own), len(starts))

    def _each(self, work: Callable[[FlatModel, Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Yield work(model, item) for every item in order, a few of them under way at a time."""
        waiting: deque[Future[T]] = deque()
        with finished(waiting):
            for item in items:
                yield from results(waiting, but=2 * self.workers - 1)
                waiting.append(self._threads.submit(self._on_a_model, work, item))
            yield from results(waiting)

    def _on_a_model(self, work: Callable[[FlatModel, Any], T], item: Any, turn: Turn = Turn.WHOLE) -> T:
        with self._cores.one(turn):
            model = self._free.get()
            try:
                return work(model, item)
            finally:
                self._free.put(model)

    def _wait(self) -> None:
        """Let the others compute first."""
        self._cores.give()
        self._cores.take(Turn.AFTER)


def results(futures: deque[Future[T]], but: int = 0) -> Iterator[T]:
    """Take results from the left, but so many; a future stays until its result is there, for `finished` to see."""
    while len(futures) > but:
        result = futures[0].result()
        futures.popleft()
        yield result


@contextmanager
def finished(futures: deque[Future[T]]) -> Iterator[None]:
    """After an error or Ctrl-C, let none of these go on in the background."""
    try:
        yield
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
