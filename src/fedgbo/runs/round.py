"""One round: sample, broadcast, train, average, update."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import DivergenceError
from fedgbo.core.random import stream
from fedgbo.core.schedule import at_round
from fedgbo.core.state import State
from fedgbo.engines.engine import Engine
from fedgbo.runs.prices import Prices
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.steps import LocalSteps, steps_of


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
    server = now.server_update(server, result.mean, result.steps).to(server.params.dtype)
    if (name := server.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    ledger = prices.booked(progress.ledger, algorithm, result, steps if result.counted is None else result.counted)
    ended = time.perf_counter()
    ledger = replace(ledger, seconds=ledger.seconds + ended - began)
    seconds = {"training": trained - began, "server": ended - trained}
    return Progress(server, ledger, progress.rounds, seconds=seconds)


def sample(clients: int, cohort_size: int, seed: int, t: int) -> list[int]:
    """Return round t's clients: uniform, without replacement, in ascending order."""
    drawn = stream(seed, "cohort", t).choice(clients, cohort_size, replace=False)
    clients_drawn: list[int] = drawn.tolist()
    return sorted(clients_drawn)
