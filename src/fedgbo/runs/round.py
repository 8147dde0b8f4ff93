"""One round: sample, broadcast, train, average, update."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.elementwise import is_elementwise
from fedgbo.core.errors import DivergenceError
from fedgbo.core.random import stream
from fedgbo.core.schedule import at_round
from fedgbo.core.state import State
from fedgbo.engines.engine import Engine
from fedgbo.engines.serial import CohortResult
from fedgbo.runs.prices import Prices
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.steps import LocalSteps, steps_of

DRAWN = 1024  # clients that are drawn at a time: so a draw costs a third of what it does between other work
PIECE = 131_072  # numbers of each vector that the server works on at a time


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a run has come; what callbacks get after every round."""

    state: State
    ledger: Ledger
    rounds: int  # that the run will have in all
    record: Record | None = None  # of this round, if it was evaluated
    seconds: Mapping[str, float] = field(default_factory=dict)  # of this round: training, server, evaluation, saving


def next_round(
    engine: Engine, algorithm: FederatedAlgorithm, local_steps: LocalSteps, prices: Prices, progress: Progress
) -> Progress:
    """Return where the run is after one more round."""
    began, t, server = time.perf_counter(), progress.ledger.round, progress.state
    task, now = engine.task, at_round(algorithm, t)
    cohort = sample(task.data.clients, task.cohort_size, engine.seed, t)
    steps = steps_of(local_steps, cohort, t)
    result = engine.train(now, now.broadcast(server), cohort, steps, t)
    trained = time.perf_counter()
    server = server_step(now, server, result)
    if (name := server.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    ended = time.perf_counter()
    counted = steps if result.counted is None else result.counted
    ledger = progress.ledger.with_drift(result.drift)
    ledger = prices.booked(ledger, algorithm, result, counted, seconds=ended - began)
    seconds = {"training": trained - began, "server": ended - trained}
    return Progress(server, ledger, progress.rounds, seconds=seconds)


def server_step(algorithm: FederatedAlgorithm, server: State, result: CohortResult) -> State:
    """Return the server's next state, rounded to the type of its model.

    Where every number stands for itself, the vectors are gone through in pieces that stay in the processor's cache with
    all that is computed on the way.
    """
    length, kind = server.params.numel(), server.params.dtype
    if length < 2 * PIECE or not server.params.is_cpu or not is_elementwise(algorithm):
        return algorithm.server_update(server.to(torch.float64), result.mean, result.steps).to(kind)

    def piece(begin: int, end: int) -> dict[str, Tensor]:
        before, mean = server.part(begin, end).to(torch.float64), result.sent.part(begin, end)
        return algorithm.server_update(before, mean, result.steps).tensors()

    first = piece(0, PIECE)
    whole = {name: torch.empty_like(server.params) for name in first}
    for name, numbers in first.items():
        whole[name][:PIECE] = numbers
    pieces = iter([(begin, min(begin + PIECE, length)) for begin in range(PIECE, length, PIECE)])

    def work() -> None:
        for begin, end in pieces:  # each goes to one thread
            for name, numbers in piece(begin, end).items():
                whole[name][begin:end] = numbers

    with ThreadPoolExecutor(1, "fedgbo-server") as other:
        helping = other.submit(work)
        work()
    helping.result()
    return State.of_tensors(whole)


def sample(clients: int, cohort_size: int, seed: int, t: int) -> list[int]:
    """Return round t's clients: uniform, without replacement, in ascending order."""
    together = max(1, DRAWN // cohort_size)
    return list(_cohorts(clients, cohort_size, seed, t // together, together)[t % together])


@lru_cache(maxsize=8)
def _cohorts(clients: int, cohort_size: int, seed: int, block: int, together: int) -> list[list[int]]:
    """Return the clients of one block of rounds after the other."""
    cohorts = np.empty((together, cohort_size), np.int64)
    for t, cohort in enumerate(cohorts, start=block * together):
        cohort[:] = stream(seed, "cohort", t).choice(clients, cohort_size, replace=False)
    cohorts.sort(axis=1)
    rows: list[list[int]] = cohorts.tolist()
    return rows
