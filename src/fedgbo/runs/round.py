"""One round: sample, broadcast, train, combine, update. docs/architecture.md follows this function."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedgbo.core import ConfigError, DivergenceError, FederatedAlgorithm, Part, State, StopRun, at_round, name_of
from fedgbo.costs.flops import ModelCost
from fedgbo.costs.operations import Meter
from fedgbo.engines.engine import Engine, Gathered, Round
from fedgbo.engines.generators import Generators
from fedgbo.pipeline import Pipeline
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


@dataclass(frozen=True)
class Accounts:
    """What one sample and one parameter of a model cost."""

    params: int  # |x|
    cost: ModelCost

    @classmethod
    def of(cls, engine: Engine) -> "Accounts":
        """Count on a copy of the engine's model."""
        return cls(
            engine.model.params.numel(), ModelCost.of(engine.model.original, engine.model.loss_of, *engine.sample)
        )

    def booked(self, ledger: Ledger, gathered: Gathered, seconds: float) -> Ledger:
        """Return the ledger with one more round, which took so many seconds."""
        macs, counted = self.cost.macs, self.cost.gradient_flops
        return ledger.with_drift(gathered.drift)._replace(
            round=ledger.round + 1,
            download_bytes=ledger.download_bytes + gathered.download_bytes,
            upload_bytes=ledger.upload_bytes + gathered.upload_bytes,
            flops=self._added(ledger.flops, gathered, None if macs is None else 3 * macs),
            counted_flops=self._added(ledger.counted_flops, gathered, counted),
            seconds=ledger.seconds + seconds,
            loss_sum=ledger.loss_sum + gathered.loss,
            loss_rounds=ledger.loss_rounds + 1,
        )

    def _added(self, total: float | None, gathered: Gathered, per_gradient: float | None) -> float | None:
        """Add N of Appendix B: gradients of one sample each, and the updates of all parameters."""
        if total is None or per_gradient is None or gathered.operations is None:
            return None
        return total + gathered.gradients * per_gradient + gathered.operations * self.params

    def note(self, ledger: Ledger) -> str | None:
        """Say why FLOPs are missing, where they are."""
        if ledger.flops is not None:
            return None
        return self.cost.note or "FLOPs could not be counted for this algorithm"


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
        Generators().start(name_of(engine.seed, "server", t))  # for a sampler or a server_update that draws
        groups = pipeline.groups(engine.task.data.clients, engine.seed, t)
        if not groups:  # Poisson sampling may draw nobody: the server state stays as it is
            return progress._replace(ledger=progress.ledger._replace(round=t + 1), record=None, seconds={})

        # one group, but for asynchronous clients, who train from earlier server states
        exchanged = [
            self._exchange(server, at_round(self.algorithm, t - age) if age else algorithm, pipeline, cohort, t, age)
            for age, cohort in groups.items()
        ]
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

    def _exchange(
        self,
        server: State,
        algorithm: FederatedAlgorithm,
        pipeline: Pipeline,
        cohort: Sequence[int],
        t: int,
        staleness: int,
    ) -> tuple[Gathered, Part]:
        """Let clients train from the server state of `staleness` rounds ago; return what they gave."""
        engine, name = self.engine, type(algorithm).__name__
        version = algorithm.version(server, staleness)
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
        return gathered, Part(algorithm, mean, gathered.steps, gathered.weight, version, staleness)


def _buffers(server: State, parts: Sequence[Part]) -> Tensor | None:
    """Return the server's buffers minus the mean over all clients of the differences that they made."""
    means = [(part.mean.buffers, part.weight) for part in parts if part.mean.buffers is not None]
    if server.buffers is None or not means:
        return server.buffers
    total = sum(weight for _, weight in means)
    moved = [buffers if weight == total else buffers * (weight / total) for buffers, weight in means]
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
