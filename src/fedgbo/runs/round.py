"""One round: sample, broadcast, train, combine, update. docs/architecture.md follows this function."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from fedgbo.core import ConfigError, DivergenceError, FederatedAlgorithm, State, at_round
from fedgbo.costs.operations import Meter
from fedgbo.engines.engine import Engine, Round
from fedgbo.pipeline import Pipeline
from fedgbo.runs.accounting import Accounts
from fedgbo.runs.memory import ClientMemory
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.steps import LocalSteps, steps_of


class Progress(NamedTuple):
    """How far a run has come; what callbacks get after every round."""

    state: State
    ledger: Ledger
    rounds: int  # that the run will have in all
    record: Record | None = None  # of this round, if it was evaluated
    seconds: Mapping[str, float] = MappingProxyType({})  # of this round: training, server, evaluation, saving
    engine: str = ""  # how clients take their local steps, and why
    best: State | None = None  # the model of the best evaluation so far, where it is kept


@dataclass(frozen=True, eq=False)
class Rounds:
    """All that stays the same from round to round."""

    engine: Engine
    algorithm: FederatedAlgorithm
    local_steps: LocalSteps
    pipeline: Pipeline
    accounts: Accounts
    meter: Meter
    memory: ClientMemory | None = None

    def next(self, progress: Progress) -> Progress:
        """Return the run's progress after one more round."""
        began, t, server = time.perf_counter(), progress.ledger.round, progress.state
        engine, algorithm, pipeline = self.engine, at_round(self.algorithm, t), at_round(self.pipeline, t)
        cohort = pipeline.cohort(engine.task.data.clients, engine.seed, t)
        if not cohort:  # Poisson sampling may draw nobody: the server state stays as it is
            return progress._replace(ledger=progress.ledger._replace(round=t + 1), record=None, seconds={})
        name, steps = type(algorithm).__name__, steps_of(self.local_steps, cohort, t)
        down = State.expect(algorithm.broadcast(server), f"{name}.broadcast", server.params)
        down = down.with_buffers(server.buffers)

        # client_update and the transforms' encode for every client, then the aggregator
        gathered = engine.train(Round(t, algorithm, down, cohort, steps, pipeline, self.meter, self.memory))

        mean = pipeline.decode(gathered.mean, engine.seed, t)
        after = algorithm.server_update(server, mean, gathered.steps)
        after = State.expect(after, f"{name}.server_update", server.params)
        if server.buffers is not None and mean.buffers is not None:
            after = after.with_buffers(server.buffers - mean.buffers)
        after = _checked(after, server, t)
        if self.memory is not None:
            self.memory.commit(gathered.clients, t)
        took = time.perf_counter() - began
        seconds = {"training": gathered.training_seconds, "server": took - gathered.training_seconds}
        ledger = self.accounts.booked(progress.ledger, gathered, took)
        return progress._replace(state=after, ledger=ledger, record=None, seconds=seconds)


def _checked(after: State, server: State, t: int) -> State:
    """Return the server state in the model's type; raise unless it is finite and has the statistics of before."""
    after = after.to(server.params.dtype)
    if after.stats.keys() != server.stats.keys():
        raise ConfigError(
            f"server_update returned the statistics {sorted(after.stats)}, but there were {sorted(server.stats)}"
        )
    if (name := after.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    return after
