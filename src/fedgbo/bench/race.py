"""Contenders, each in a process of its own so that they share no threads, memory or caches; they work in turns."""

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from fedgbo.algorithms import FedAvg, FedGBO
from fedgbo.bench.plain import PlainLoop
from fedgbo.core import FederatedAlgorithm, FedGBOError
from fedgbo.costs.operations import Meter
from fedgbo.engines.device import cores, device_of, keep_freed_memory
from fedgbo.engines.select import engine_for
from fedgbo.experiments.jobs import ctrl_c_ignored
from fedgbo.optimisers import SGD, SGDm
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.runs.record import Ledger
from fedgbo.runs.round import Accounts, Progress, Rounds
from fedgbo.tasks import TASKS
from fedgbo.tasks.task import Task

BETA = 0.9
TRIES = 3  # of each number of threads
SQUARE = 2048  # rows and columns of the matrices whose product shows what the machine can do


@dataclass(frozen=True)
class Contender:
    """Our engine or the `plain` loop on a task, or a matrix `product`. Sizes left out are the task's own."""

    kind: Literal["ours", "plain", "product"]
    task: str = ""
    algorithm: Literal["fedavg", "fedgbo"] = "fedavg"
    lr: float = 0.01
    local_steps: int = 10
    clients_per_round: int | None = None
    workers: int | None = None
    device: str = "cpu"
    builder: Callable[[], Task] | None = None  # of the task; None: the catalogue's

    def build_task(self) -> Task:
        task = (self.builder or TASKS[self.task])()
        return task if self.clients_per_round is None else replace(task, clients_per_round=self.clients_per_round)

    def build_algorithm(self) -> FederatedAlgorithm:
        return FedAvg(SGD(self.lr)) if self.algorithm == "fedavg" else FedGBO(SGDm(self.lr, BETA))


@dataclass(frozen=True)
class Lap:
    """The result of a contender's turn."""

    rounds: int
    steps: int  # of all clients together; of a product, floating point operations
    seconds: float
    server_seconds: float  # of them, sampling, averaging, server_update and accounting
    peak_bytes: int  # resident memory since the process began, data files' pages included
    file_bytes: int  # of the memory now, pages of files, which the system may take back
    threads: int  # of each operation

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


class BenchError(FedGBOError):
    """A contender could not run."""


def race(contenders: Sequence[Contender], seconds: float, repeats: int) -> list[list[Lap]]:
    """Return `repeats` laps of about `seconds` for each contender; only one works at a time."""
    context = get_context("spawn")
    pipes, processes = [], []
    try:
        for who in contenders:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, who), daemon=True)
            with ctrl_c_ignored():
                process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for who, pipe in zip(contenders, pipes, strict=True):
            _answer(pipe, who)  # it is ready
        laps: list[list[Lap]] = [[] for _ in contenders]
        for _ in range(repeats):
            for who, pipe, mine in zip(contenders, pipes, laps, strict=True):
                pipe.send(seconds)
                mine.append(_answer(pipe, who))
        return laps
    finally:
        for pipe in pipes:
            pipe.close()  # which ends the process
        for process in processes:
            if sys.exc_info()[0] is None:
                process.join(5)
            process.kill()


def _answer(pipe: Connection, who: Contender) -> Lap:
    name = f"{who.kind} on {who.task or 'matrices'}"
    try:
        answer = pipe.recv()
    except EOFError as error:
        raise BenchError(f"{name} ended before it was measured; is there enough memory?") from error
    if not isinstance(answer, Lap):
        raise BenchError(f"{name} failed: {answer}")
    return answer


def _work(pipe: Connection, who: Contender) -> None:
    try:
        work = prepare(who)
        pipe.send(work(0.0))
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return
    except Exception as error:  # for the parent, which stops the bench
        pipe.send(f"{type(error).__name__}: {error}")


def prepare(who: Contender) -> Callable[[float], Lap]:
    """Build all that is needed, warm up, and return a function that works for about the given seconds."""
    if who.kind == "ours":
        return _ours(who)
    torch.set_num_threads(cores())
    if who.kind == "product":
        return _product(device_of(who.device))
    beta = BETA if who.algorithm == "fedgbo" else None
    loop = PlainLoop(who.build_task(), who.local_steps, who.lr, beta, device_of(who.device))
    return _with_better_threads(_laps(lambda t: (loop.round(t), 0.0)))


def _with_better_threads(lap: Callable[[float], Lap]) -> Callable[[float], Lap]:
    """Return the same with one thread for each operation or with all cores, whichever is faster in the first turn."""
    chosen: list[int] = []

    def turn(seconds: float) -> Lap:
        if seconds and not chosen:
            rates: dict[int, list[float]] = {1: [], cores(): []}
            for threads in list(rates) * TRIES:
                torch.set_num_threads(threads)
                rates[threads].append(lap(seconds / TRIES).rate)
            chosen.append(max(rates, key=lambda threads: median(rates[threads])))
            torch.set_num_threads(chosen[0])
        return lap(seconds)

    return turn


def _ours(who: Contender) -> Callable[[float], Lap]:
    keep_freed_memory()
    torch.set_num_threads(1)
    task, algorithm = who.build_task(), who.build_algorithm()
    device = device_of(who.device)
    engine = engine_for(task, algorithm, 0, who.workers or cores(), device)
    pipeline = Pipeline(FixedSize(task.cohort_size))
    rounds = Rounds(engine, algorithm, who.local_steps, pipeline, Accounts.of(engine), Meter(algorithm))
    progress = Progress(algorithm.init(engine.origin.params), Ledger(), rounds=sys.maxsize)

    def one(t: int) -> tuple[int, float]:
        nonlocal progress
        progress = rounds.next(progress)
        return task.cohort_size * who.local_steps, progress.seconds["server"]

    return _laps(one)


def _product(device: torch.device) -> Callable[[float], Lap]:
    a, b, out = torch.randn(3, SQUARE, SQUARE, device=device)

    def one(t: int) -> tuple[int, float]:
        torch.mm(a, b, out=out)
        out[0, 0].item()  # waits for the device
        return 2 * SQUARE**3, 0.0

    return _laps(one)


def _laps(one: Callable[[int], tuple[int, float]]) -> Callable[[float], Lap]:
    """Return a function that works round after round until the time is over.

    `one` carries out round t and returns its local steps and the server's seconds.
    """
    done = itertools.count()

    def lap(seconds: float) -> Lap:
        rounds = steps = 0
        server, began = 0.0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or rounds == 0:
            more, server_seconds = one(next(done))
            steps, server, rounds = steps + more, server + server_seconds, rounds + 1
        return Lap(rounds, steps, took, server, *_memory(), torch.get_num_threads())

    lap(0.0)  # warm up
    return lap


def _memory() -> tuple[int, int]:
    """Return the peak of resident memory, and the pages of files in it now, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        import resource  # which Windows does not have

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024), 0
    # getrusage would count what the parent had when it forked
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024, int(fields["RssFile"].split()[0]) * 1024
