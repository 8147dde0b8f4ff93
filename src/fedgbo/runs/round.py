"""One round: sample, broadcast, train, combine, update. docs/architecture.md follows this function."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedgbo.core import ConfigError, DivergenceError, FederatedAlgorithm, Part, State, StopRun, at_round
from fedgbo.costs.operations import Meter
from fedgbo.engines.engine import Engine, Gathered, Round
from fedgbo.engines.generators import Generators
from fedgbo.pipeline import Pipeline
from fedgbo.runs.accounting import Accounts
from fedgbo.runs.memory import ClientMemory
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.steps import LocalSteps, steps_of


class Progress(NamedTuple):
    """The state of a run after a round, which callbacks receive."""

    state: State
    ledger: Ledger
    rounds: int  # that the run will have in all
    record: Record | None = None  # of this round, if it was evaluated
    seconds: Mapping[str, float] = MappingProxyType({})  # of this round: training, server, evaluation, saving
    engine: str = ""  # how clients take their local steps, and why
    about: Mapping[str, Any] = MappingProxyType({})  # what the run is: task, algorithm, local_steps, seed, ...
    best: State | None = None  # the model of the best evaluation so far, where it is kept

    def stop(self) -> NoReturn:
        """Stop the run after this round, by raising StopRun."""
        raise StopRun(f"stopped by a callback after round {self.ledger.round}")


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
    initial: Tensor | None = None  # x_0

    def next(self, progress: Progress) -> Progress:
        """Return the run's progress after one more round."""
        began, t, server = time.perf_counter(), progress.ledger.round, progress.state
        engine, algorithm, pipeline = self.engine, at_round(self.algorithm, t), at_round(self.pipeline, t)
        Generators().seed(engine.seed, "server", t)  # for a sampler, an aggregator or a server_update that draws
        groups = pipeline.groups(engine.task.data.clients, engine.seed, t)
        if not groups:  # Poisson sampling may draw nobody: the server state stays as it is
            return progress._replace(ledger=progress.ledger._replace(round=t + 1), record=None, seconds={})

        # one group, but for asynchronous clients, who train from earlier server states
        exchanged = [self._exchange(server, cohort, t, staleness) for staleness, cohort in groups.items()]
        gathered = reduce(Gathered.with_part, (gathered for gathered, _ in exchanged))
        parts = [part for _, part in exchanged]
        mean, steps = algorithm.merge(parts)
        after = algorithm.server_update(server, mean, steps)

        where = f"{type(algorithm).__name__}.server_update"
        after = State.expect(after, where, server.params).with_buffers(_buffers(server, parts))
        after = _checked(after, server, t)
        if self.memory is not None:
            self.memory.commit(gathered.clients, t)
        took = time.perf_counter() - began
        seconds = {"training": gathered.training_seconds, "server": took - gathered.training_seconds}
        ledger = self.accounts.booked(progress.ledger, gathered, took)
        return progress._replace(state=after, ledger=ledger, record=None, seconds=seconds)

    def _exchange(self, server: State, cohort: Sequence[int], t: int, staleness: int) -> tuple[Gathered, Part]:
        """Let clients train from the server state of so many rounds ago; return what they gave."""
        engine, pipeline = self.engine, at_round(self.pipeline, t)
        algorithm = at_round(self.algorithm, t - staleness)
        name, version = type(algorithm).__name__, algorithm.version(server, staleness)
        steps = pipeline.sampler.steps(cohort, steps_of(self.local_steps, cohort, t - staleness))
        down = State.expect(algorithm.broadcast(version), f"{name}.broadcast", server.params)
        down = down.with_buffers(server.buffers)

        # client_update and the transforms' encode for every client, then the aggregator
        work = Round(t, algorithm, down, cohort, steps, pipeline, self.meter, self.memory, self.initial)
        gathered = engine.train(work)
        mean = pipeline.decode(gathered.mean, engine.seed, t)
        if (second := algorithm.second_exchange(version, mean)) is not None:
            down = State.expect(algorithm.broadcast(second), f"{name}.broadcast", server.params)
            again = work.with_download(down.with_buffers(server.buffers))
            gathered, version = engine.train(again).after(gathered), second
            mean = pipeline.decode(gathered.mean, engine.seed, t)
        return gathered, Part(algorithm, mean, gathered.steps, version, staleness)


def _buffers(server: State, parts: Sequence[Part]) -> Tensor | None:
    """Return the server's buffers minus the mean over all clients of the differences that they made."""
    means = [(part.mean.buffers, part.mean.clients) for part in parts if part.mean.buffers is not None]
    if server.buffers is None or not means:
        return server.buffers
    total = sum(clients for _, clients in means)
    moved = [buffers if clients == total else buffers * (clients / total) for buffers, clients in means]
    return server.buffers - (moved[0] if len(moved) == 1 else torch.stack(moved).sum(dim=0))


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
