"""One round: sample, broadcast, train, average, update."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.schedule import at_round
from fedgbo.core.state import State
from fedgbo.engines.engine import Engine
from fedgbo.runs.cohorts import sample
from fedgbo.runs.prices import Prices, work_of
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.server import server_step
from fedgbo.runs.steps import LocalSteps, steps_of


class Progress(NamedTuple):
    """How far a run has come; what callbacks get after every round."""

    state: State
    ledger: Ledger
    rounds: int  # that the run will have in all
    record: Record | None = None  # of this round, if it was evaluated
    seconds: Mapping[str, float] = MappingProxyType({})  # of this round: training, server, evaluation, saving


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
    server = server_step(now, server, result, t, lasting=now is algorithm)
    ended = time.perf_counter()
    counted = steps if result.counted is None else result.counted
    ledger = progress.ledger.with_drift(result.drift)
    ledger = prices.booked(ledger, work_of(algorithm, counted), result, ended - began)
    seconds = {"training": trained - began, "server": ended - trained}
    return Progress(server, ledger, progress.rounds, seconds=seconds)
