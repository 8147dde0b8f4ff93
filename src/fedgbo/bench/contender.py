"""The contenders of the bench, each in a process of its own that works on request."""

import itertools
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fedgbo.algorithms import FedAvg, FedGBO
from fedgbo.bench.crowd import crowd
from fedgbo.bench.plain import PlainLoop
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.costs.operations import Meter
from fedgbo.engines.device import cores, keep_freed_memory
from fedgbo.engines.select import engine_for
from fedgbo.optimisers import SGD, SGDm
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.runs.accounting import Accounts
from fedgbo.runs.record import Ledger
from fedgbo.runs.round import Progress, Rounds
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
    server_seconds: float = 0.0  # of them, sampling, averaging, server_update and accounting
    peak_bytes: int = 0  # resident memory since the process began, data files' pages included
    file_bytes: int = 0  # of the memory now, pages of files, which the system may take back

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


class Turn(NamedTuple):
    """One round of a contender."""

    steps: int
    server_seconds: float = 0.0


def prepare(who: Contender) -> Work:
    """Build all that is needed, warm up, and return a function that works for about so many seconds."""
    if who.kind == "product":
        return _product()
    if who.kind == "plain":
        torch.set_num_threads(cores())
        loop = PlainLoop(who.build_task(), who.local_steps, who.lr, BETA if who.algorithm == "fedgbo" else None)
        return _laps(lambda t: Turn(loop.round(t)))
    return _ours(who)


def _ours(who: Contender) -> Work:
    keep_freed_memory()
    torch.set_num_threads(1)
    task, algorithm = who.build_task(), who.build_algorithm()
    engine = engine_for(task, algorithm, seed=0, workers=who.workers or cores())
    pipeline = Pipeline(FixedSize(task.cohort_size))
    rounds = Rounds(engine, algorithm, who.local_steps, pipeline, Accounts.of(engine), Meter(algorithm))
    progress = Progress(algorithm.init(engine.initial_params), Ledger(), rounds=sys.maxsize)

    def one(t: int) -> Turn:
        nonlocal progress
        progress = rounds.next(progress)
        return Turn(task.cohort_size * who.local_steps, progress.seconds["server"])

    return _laps(one)


def _product() -> Work:
    torch.set_num_threads(cores())
    a, b = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    out = torch.empty(SQUARE, SQUARE)

    def one(t: int) -> Turn:
        torch.mm(a, b, out=out)
        return Turn(2 * SQUARE**3)

    return _laps(one)


def _laps(one: Callable[[int], Turn]) -> Work:
    """Return a function that does one round after the other until the time is over."""
    done = itertools.count()

    def lap(seconds: float) -> Lap:
        rounds = steps = 0
        server, began = 0.0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or rounds == 0:
            turn = one(next(done))
            steps, server, rounds = steps + turn.steps, server + turn.server_seconds, rounds + 1
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
