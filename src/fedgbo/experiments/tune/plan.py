"""A search as plain data: what is searched, how, and how a setting is scored. All workers of a study agree on it."""

import math
from collections.abc import Mapping
from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError
from fedgbo.core.random import permutation
from fedgbo.experiments.presets import algorithm_table
from fedgbo.experiments.tune.axes import Axis
from fedgbo.experiments.tune.score import Kind
from fedgbo.runs.config import RunConfig, Table

FIRST_SEED = 100  # so that tuning never uses the seeds 0, 1, ... that comparisons are made with
STARTUP = 10  # settings spread evenly before TPE has something to learn from

Settings = Mapping[str, float]


class Plan(BaseModel):
    """One search."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Table
    algorithm: str
    optimiser: str | None = None
    axes: tuple[Axis, ...]
    fixed: dict[str, float] = {}
    search: Literal["tpe", "grid"] = "tpe"
    trials: int  # settings that are tried
    budget: int | None = None  # rounds of all trials together
    rounds: int = 100
    local_steps: int = 10
    seeds: int = 2
    eval_every: int = 5
    score: Kind = "curve"
    warm_up: int = 0  # rounds that do not count
    held_out: float | None = 0.2  # None: on the test set
    prune: int = 3  # successive halving keeps one in so many; 0 never stops a trial early
    clients_per_round: int | Literal["all"] | None = None
    batch_size: int | Literal["full"] | None = None
    test_samples: int | None = None

    def check(self) -> None:
        """Raise on what cannot be searched, before anything is trained."""
        for name in ("trials", "rounds", "local_steps", "seeds", "eval_every"):
            whole(name, getattr(self, name))
        if not 0 <= self.warm_up < self.rounds:
            raise ConfigError(f"warm-up must be from 0 to below the {self.rounds} rounds, not {self.warm_up}")
        if self.prune < 0 or self.prune == 1:
            raise ConfigError(f"prune keeps one trial in 2 or more, or is 0 for never; not {self.prune}")
        if self.budget is not None and self.budget < self.trial_rounds:
            raise ConfigError(
                f"a budget of {self.budget} rounds is less than one trial's {self.trial_rounds} "
                f"({self.seeds} seeds of {self.rounds}); give more, or fewer seeds or rounds"
            )
        ranges = [axis.name for axis in self.axes if axis.range_only]
        if self.search == "grid" and ranges:
            raise ConfigError(f"a grid needs values for {ranges[0]}, e.g. {ranges[0]}=0.1,1,10; ranges are for tpe")
        ends = [{axis.name: value for axis in self.axes for value in [end(axis.values)]} for end in (min, max)]
        for settings in ends:
            self.config(settings, FIRST_SEED).build_algorithm()

    @property
    def trial_rounds(self) -> int:
        """Rounds of one trial that is not stopped early: all its seeds."""
        return self.seeds * self.rounds

    @property
    def first_look(self) -> int:
        """The round after which successive halving first compares trials; then at `prune` times as many, and so on."""
        return max(self.rounds // 4, self.warm_up + 1, 1)

    @property
    def cells(self) -> int:
        """How many settings the grid has."""
        return math.prod(len(axis.values) for axis in self.axes)

    def spread(self, index: int) -> dict[str, float] | None:
        """Return the setting that trial `index` must try: a grid's cell, in a random order, or one of TPE's first.

        TPE's first are Roberts' R sequence: evenly spread, and each a function of its index alone, so that two workers
        never try the same. None leaves the choice to TPE.
        """
        if self.search == "grid":
            place = int(permutation(self.cells, 0, "grid")[index])
            cell = list(product(*(axis.values for axis in self.axes)))[place]
            return {axis.name: value for axis, value in zip(self.axes, cell, strict=True)}
        if index >= STARTUP:
            return None
        root = 2.0
        for _ in range(60):
            root = (1 + root) ** (1 / (len(self.axes) + 1))  # of x^(d+1) = x + 1
        return {axis.name: axis.at((0.5 + index * root ** -(j + 1)) % 1) for j, axis in enumerate(self.axes)}

    def config(self, settings: Settings, seed: int) -> RunConfig:
        """Return the run of one seed with these settings."""
        return RunConfig(
            task=self.task,
            algorithm=algorithm_table(self.algorithm, self.optimiser, {**self.fixed, **settings}),
            rounds=self.rounds,
            local_steps=self.local_steps,
            seed=seed,
            eval_every=self.eval_every,
            clients_per_round=self.clients_per_round,
            batch_size=self.batch_size,
            test_samples=self.test_samples,
            held_out=self.held_out,
        )

    def identity(self) -> str:
        """Return what all who work on one study must agree on: everything but how long it goes on."""
        return self.model_dump_json(exclude={"trials", "budget"})
