"""Several clients at once, each on one core, in threads: torch lets go of Python's lock while it computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.state import State
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.halves import at_once
from fedgbo.engines.serial import ClientResult, CohortResult, SerialEngine, Work, gather

T = TypeVar("T")


class ParallelEngine:
    """Does what the plain engine does, for as many clients at a time as there are workers.

    Each worker has a model of its own. Results are taken in the order of clients, whoever is done first, so that bits
    do not depend on the number of workers; and no more clients are begun than can be held, so that memory does not
    grow with the cohort.
    """

    def __init__(self, plain: SerialEngine, algorithm: FederatedAlgorithm, workers: int) -> None:
        self.plain = plain
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.initial_params, self.sample = plain.initial_params, plain.sample
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, "fedgbo-client")
        self._free: SimpleQueue[FlatModel] = SimpleQueue()
        self._free.put(plain.model)
        for _ in range(workers - 1):
            model = FlatModel(plain.build_model(), plain.task.loss)
            model.specialise(plain.sample[0], algorithm.terms)
            self._free.put(model)

    def train(
        self,
        algorithm: FederatedAlgorithm,
        down: State,
        cohort: Sequence[int],
        steps: Sequence[int],
        t: int,
        odd: int | None = None,
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        work = Work(algorithm, down, t, odd if self.plain.splits else None)

        def update(model: FlatModel, who: tuple[int, int]) -> ClientResult:
            return self.plain.train_client(model, work, *who, halves=at_once(self._submit))

        order = self.plain.team.share(sorted(zip(cohort, steps, strict=True)))
        return gather(self._each(update, order), down, steps, self.plain.team)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        plain, starts = self.plain, self.plain.chunks()
        own = plain.team.share(starts)
        return plain.scores(self._each(lambda model, start: plain.score(model, params, start), own), len(starts))

    def _each(self, work: Callable[[FlatModel, Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Yield work(model, item) for every item in order, a few of them under way at a time."""
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                if len(waiting) > self.workers:
                    yield waiting.popleft().result()
                waiting.append(self._threads.submit(self._on_a_model, work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:  # after an error or Ctrl-C, let none go on in the background
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def _submit(self, work: Callable[[FlatModel], Any]) -> "Future[Any]":
        return self._threads.submit(self._on_a_model, lambda model, _: work(model), None)

    def _on_a_model(self, work: Callable[[FlatModel, Any], T], item: Any) -> T:
        model = self._free.get()
        try:
            return work(model, item)
        finally:
            self._free.put(model)
