"""One round: sample, broadcast, train, average, update."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

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

PIECE = 65_536  # numbers of each vector that the server works on at a time


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
    odd = cohort[-1] if len(cohort) % 2 else None
    result = engine.train(now, now.broadcast(server), cohort, steps, t, odd)
    trained = time.perf_counter()
    server = server_step(now, server, result)
    if (name := server.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    counted = steps if result.counted is None else result.counted
    ledger = prices.booked(progress.ledger, algorithm, result, counted).with_drift(result.drift)
    ended = time.perf_counter()
    ledger = replace(ledger, seconds=ledger.seconds + ended - began)
    seconds = {"training": trained - began, "server": ended - trained}
    return Progress(server, ledger, progress.rounds, seconds=seconds)


def server_step(algorithm: FederatedAlgorithm, server: State, result: CohortResult) -> State:
    """Return the server's next state, rounded to the type of its model.

    Where every number stands for itself, the vectors are gone through in pieces that stay in the processor's cache with
    all that is computed on the way.
    """
    length, kind = server.params.numel(), server.params.dtype
    if length < 2 * PIECE or not server.params.is_cpu or not is_elementwise(algorithm):
        return algorithm.server_update(server, result.mean, result.steps).to(kind)

    def piece(begin: int, end: int) -> dict[str, Tensor]:
        return algorithm.server_update(server.part(begin, end), result.sent.part(begin, end), result.steps).tensors()

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
    drawn = stream(seed, "cohort", t).choice(clients, cohort_size, replace=False)
    clients_drawn: list[int] = drawn.tolist()
    return sorted(clients_drawn)
