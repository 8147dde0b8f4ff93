"""What takes part in the bench: each in a process of its own, that works when it is told to."""

import itertools
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedgbo.algorithms import FedAvg, FedGBO
from fedgbo.bench.crowd import crowd
from fedgbo.bench.plain import PlainLoop
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.state import State
from fedgbo.engines.ahead import Cohorts, LooksAhead, Played
from fedgbo.engines.allocator import keep_freed_memory
from fedgbo.engines.engine import Engine
from fedgbo.engines.select import engine_for
from fedgbo.engines.serial import CohortResult
from fedgbo.optimisers import SGD, SGDm
from fedgbo.runs.loop import cores
from fedgbo.runs.prices import Prices
from fedgbo.runs.record import Ledger
from fedgbo.runs.round import Progress
from fedgbo.runs.rounds import Rounds
from fedgbo.tasks import TASKS
from fedgbo.tasks.task import Task

BETA = 0.9
SQUARE = 2048  # rows and columns of the matrices whose product shows what the machine can do
Work = Callable[[float], "Lap"]


@dataclass(frozen=True)
class Contender:
    """Who: `ours` or the `plain` loop on a task, or a matrix `product`. Sizes left out are the task's own."""

    kind: Literal["ours", "plain", "product"]
    task: str = ""
    algorithm: Literal["fedavg", "fedgbo"] = "fedavg"
    lr: float = 0.01
    local_steps: int = 10
    clients_per_round: int | None = None
    workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task

    def build_task(self) -> Task:
        """Build the task."""
        task = {**TASKS, "crowd": crowd}[self.task](**self.options)
        return task if self.clients_per_round is None else replace(task, clients_per_round=self.clients_per_round)

    def build_algorithm(self) -> FederatedAlgorithm:
        """Build the algorithm."""
        return FedAvg(SGD(self.lr)) if self.algorithm == "fedavg" else FedGBO(SGDm(self.lr, BETA))


@dataclass(frozen=True)
class Lap:
    """What a contender did in its turn."""

    rounds: int
    steps: int  # of all clients together; of a product, floating point operations
    seconds: float
    server_seconds: float = 0.0  # of them, sampling, averaging, the server's step and the books
    peak_bytes: int = 0  # resident memory since the process began, data files' pages included
    file_bytes: int = 0  # of the memory now, pages of files, which the system may take back

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


def prepare(who: Contender) -> Work:
    """Build all that is needed, warm up, and return a function that works for about so many seconds."""
    if who.kind == "product":
        return _product()
    if who.kind == "plain":
        torch.set_num_threads(cores())
        loop = PlainLoop(who.build_task(), who.local_steps, who.lr, BETA if who.algorithm == "fedgbo" else None)
        return _laps(loop.round)
    return _ours(who)


def _ours(who: Contender) -> Work:
    keep_freed_memory()
    torch.set_num_threads(1)
    task, algorithm = who.build_task(), who.build_algorithm()
    engine = _Timed(engine_for(task, algorithm, seed=0, workers=who.workers or cores()))
    rounds = Rounds(engine, algorithm, who.local_steps, Prices.of(engine))
    progress = Progress(algorithm.init(engine.initial_params), Ledger(), rounds=sys.maxsize)

    def one(t: int) -> int:
        nonlocal progress
        progress = rounds.next(progress)
        return task.cohort_size * who.local_steps

    return _laps(one, engine)


class _Timed:
    """An engine, and how long it trained."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks_ahead = engine if isinstance(engine, LooksAhead) else None
        self.task, self.seed, self.model = engine.task, engine.seed, engine.model
        self.initial_params, self.sample = engine.initial_params, engine.sample
        self.seconds = 0.0

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Train, and take the time; averaging is the server's."""
        began = time.perf_counter()
        result = self._engine.train(algorithm, down, cohort, steps, t)
        self.seconds += time.perf_counter() - began - result.averaging_seconds
        return result

    def ahead(self, algorithm: FederatedAlgorithm, server: State, cohorts: Cohorts, steps: int, t: int) -> list[Played]:
        """Run rounds ahead if the engine can, and take the time, without the server's."""
        if self._looks_ahead is None:
            return []
        began = time.perf_counter()
        played = self._looks_ahead.ahead(algorithm, server, cohorts, steps, t)
        self.seconds += time.perf_counter() - began - sum(one.server_seconds for one in played)
        return played

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Evaluate."""
        return self._engine.evaluate(params)


def _product() -> Work:
    torch.set_num_threads(cores())
    a, b = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    out = torch.empty(SQUARE, SQUARE)

    def one(t: int) -> int:
        torch.mm(a, b, out=out)
        return 2 * SQUARE**3

    return _laps(one)


def _laps(one: Callable[[int], int], engine: _Timed | None = None) -> Work:
    """Return a function that does one round after the other until the time is over."""
    done = itertools.count()

    def lap(seconds: float) -> Lap:
        rounds = steps = 0
        trained = engine.seconds if engine else 0.0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or rounds == 0:
            steps += one(next(done))
            rounds += 1
        server = took - (engine.seconds - trained) if engine else 0.0
        return Lap(rounds, steps, took, server, *_memory())

    lap(0.0)  # warm up
    return lap


def _memory() -> tuple[int, int]:
    """Return the peak of resident memory, and the pages of files in it now, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024), 0
    # getrusage would count what the parent had when it forked
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024, int(fields["RssFile"].split()[0]) * 1024
