"""Searches as plain data: the axes, the plan on which all workers of a study agree, and the score of a setting.

The paper's grids are lr in 10, 1, ..., 0.00001 and beta in .3 .6 .9 .99 .999 .9999. It does not print those of
FedProx's mu and FedMAX's beta: ours are powers of ten around the authors' tuned values (0.001, 0.1; 0.1, 1).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedgbo.core import ConfigError, permutation, whole
from fedgbo.core.errors import wanted
from fedgbo.experiments import shelf
from fedgbo.experiments.presets import algorithm_table, known_name, slot_names
from fedgbo.runs.config import RunConfig, Table
from fedgbo.runs.describe import find, parameters
from fedgbo.runs.record import Record

RATES = (10.0, 1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001)
DECAYS = (0.3, 0.6, 0.9, 0.99, 0.999, 0.9999)
PULLS = (1.0, 0.1, 0.01, 0.001)  # FedProx's mu
ENTROPIES = (10.0, 1.0, 0.1, 0.01)  # FedMAX's beta
OTHERS = {  # settings of the algorithms that the paper does not have, around their papers' values
    "alpha": (1.0, 0.3, 0.1, 0.03, 0.01),
    "rho": (1.0, 0.1, 0.01, 0.001),
    "q": (10.0, 1.0, 0.1, 0.01),
    "lam": (10.0, 1.0, 0.1, 0.01),
}
FIRST_SEED = 100  # tuning never uses the seeds 0, 1, ... of comparisons
STARTUP = 10  # evenly spread settings before TPE learns from them
TRIALS = 30  # of TPE without a budget
UNLIMITED = 1_000_000  # trials, if a budget of rounds ends the search
POINTS = 20  # evaluations of a run

Kind = Literal["curve", "best", "last"]  # of score
Settings = Mapping[str, float]


class Axis(BaseModel):
    """One hyperparameter: the values of a grid, or only a range from the first to the last."""

    model_config = ConfigDict(frozen=True)

    name: str
    values: tuple[float, ...]
    decay: bool = False  # whether 1 - value is searched, as for exponential means
    range_only: bool = False

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def logarithmic(self) -> bool:
        return (1 - self.high if self.decay else self.low) > 0

    def at(self, u: float) -> float:
        """Return the value at u, from 0 (low) to 1 (high), to six digits."""
        low, high = (1 - self.low, 1 - self.high) if self.decay else (self.low, self.high)
        at = low * (high / low) ** u if self.logarithmic else low + u * (high - low)
        return float(f"{1 - at if self.decay else at:.6g}")


class Plan(BaseModel):
    """One search."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Table
    algorithm: str
    optimiser: str | None = None
    axes: tuple[Axis, ...]
    fixed: dict[str, float] = {}
    search: Literal["tpe", "grid"] = "tpe"
    trials: int  # settings to try
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
        """Raise ConfigError, before any training runs, if the search is impossible."""
        for name in ("trials", "rounds", "local_steps", "seeds", "eval_every"):
            whole(name, getattr(self, name))
        if not 0 <= self.warm_up < self.rounds:
            raise ConfigError(f"warm-up must be from 0 to below the {self.rounds} rounds, not {self.warm_up}")
        if self.prune < 0 or self.prune == 1:
            raise ConfigError(f"prune must be 0, for no pruning, or at least 2, not {self.prune}")
        if self.budget is not None and self.budget < self.trial_rounds:
            raise ConfigError(
                f"a budget of {self.budget} rounds is less than one trial's {self.trial_rounds} "
                f"({self.seeds} seeds of {self.rounds}); give more, or fewer seeds or rounds"
            )
        ranges = [axis.name for axis in self.axes if axis.range_only]
        if self.search == "grid" and ranges:
            raise ConfigError(f"a grid needs values for {ranges[0]}, e.g. {ranges[0]}=0.1,1,10; ranges are for tpe")
        for settings in ({axis.name: end(axis.values) for axis in self.axes} for end in (min, max)):
            _ = self.config(settings, FIRST_SEED).built_algorithm

    @property
    def trial_rounds(self) -> int:
        return self.seeds * self.rounds  # if it is not stopped early

    @property
    def first_look(self) -> int:
        """The round after which successive halving first compares trials; then at `prune` times as many, and so on."""
        return max(self.rounds // 4, self.warm_up + 1, 1)

    @property
    def cells(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    def spread(self, index: int) -> dict[str, float] | None:
        """Return the planned setting of trial `index`: a cell of the grid, in random order, or one of TPE's first.

        TPE's first settings are Roberts' R sequence: evenly spread, and a function of the index alone, so that two
        workers never try the same. None leaves the choice to TPE.
        """
        if self.search == "grid":
            cell = list(product(*(axis.values for axis in self.axes)))[int(permutation(self.cells, 0, "grid")[index])]
            return {axis.name: value for axis, value in zip(self.axes, cell, strict=True)}
        if index >= STARTUP:
            return None
        root = 2.0
        for _ in range(60):
            root = (1 + root) ** (1 / (len(self.axes) + 1))  # of x^(d+1) = x + 1
        return {axis.name: axis.at((0.5 + index * root ** -(j + 1)) % 1) for j, axis in enumerate(self.axes)}

    def config(self, settings: Settings, seed: int) -> RunConfig:
        algorithm = algorithm_table(self.algorithm, self.optimiser, {**self.fixed, **settings})
        shared = self.model_dump(include={*RunConfig.model_fields} - {"algorithm"})
        return RunConfig(algorithm=algorithm, seed=seed, **shared)

    def identity(self) -> str:
        """Return the part on which all workers of a study must agree: everything but the length of the search."""
        return self.model_dump_json(exclude={"trials", "budget"})


def plan_of(task: str, algorithm: str, optimiser: str | None, ranges: Sequence[str], asked: Mapping[str, Any]) -> Plan:
    """Return the checked plan; in `asked`, None is the default of a field, but for `held_out`: the test set."""
    for kind, name in (("task", task), ("algorithm", algorithm), ("optimiser", optimiser or "sgd")):
        find(kind, name)  # raises if it is unknown
    axes, fixed = axes_of(algorithm, optimiser, ranges)
    given = {key: value for key, value in asked.items() if value is not None or key == "held_out"}
    try:
        plan = Plan(
            task={"name": task},
            algorithm=known_name(algorithm),
            optimiser=optimiser and known_name(optimiser),
            axes=tuple(axes),
            fixed=fixed,
            **{"trials": UNLIMITED if "budget" in given else TRIALS, **given},
        )
    except ValidationError as error:
        key = error.errors()[0]["loc"][0]
        items = [item for item in error.errors() if item["loc"][0] == key]
        raise ConfigError(f"--{str(key).replace('_', '-')} {wanted(items)}") from error
    changes: dict[str, Any] = {}
    if plan.search == "grid":
        changes["trials"] = min(plan.cells, plan.trials if "trials" in given else plan.cells)
    if "eval_every" not in given:
        changes["eval_every"] = max(1, plan.rounds // POINTS)
    plan = plan.model_copy(update=changes)
    plan.check()
    return plan


def axes_of(algorithm: str, optimiser: str | None, given: Sequence[str]) -> tuple[list[Axis], dict[str, float]]:
    """Return the axes of a search and the fixed settings; `given` are the user's KEY=VALUES.

    By default every hyperparameter that has no default is searched: lr, AdaptiveFedOpt's server_lr, the optimiser's
    beta or beta1, mu, FedMAX's beta.

    >>> axes, fixed = axes_of("adaptivefedopt", "adam", ["lr=0.1", "server_lr=0.01:1"])
    >>> [(axis.name, axis.low, axis.high) for axis in axes], fixed
    ([('server_lr', 0.01, 1.0), ('beta1', 0.3, 0.9999)], {'lr': 0.1})
    """
    made, slots = find("algorithm", algorithm), slot_names(algorithm, optimiser)
    inner: dict[str, bool] = {}
    if slots:  # the settings of the last optimiser are searched, which is the server's if it has one
        inner = parameters(find("optimiser", list(slots.values())[-1]))
    values: dict[str, tuple[float, ...]] = {"lr": RATES} if slots else {}
    if len(slots) > 1:
        values["server_lr"] = RATES
    values |= {key: DECAYS if _is_decay(key) else () for key, needed in inner.items() if needed and key != "lr"}
    own = {"lr": RATES, "mu": PULLS, "beta": ENTROPIES, **OTHERS}
    own |= {"beta": DECAYS} if algorithm == "ghbm" else {}
    values |= {key: own.get(key, ()) for key, needed in parameters(made).items() if needed and key not in slots}
    axes = {key: Axis(name=key, values=grid, decay=grid is DECAYS) for key, grid in values.items()}
    fixed: dict[str, float] = {}
    for text in given:
        axis = _parse_range(text, inner)
        if len(axis.values) == 1:
            fixed[axis.name] = axis.values[0]
            axes.pop(axis.name, None)
        else:
            axes[axis.name] = axis
    if unknown := [axis.name for axis in axes.values() if not axis.values]:
        raise ConfigError(f"no range is known for {unknown[0]}; say where to search, e.g. {unknown[0]}=0.01:1")
    if not axes:
        raise ConfigError("every setting is fixed, so there is nothing to search; give one a range, e.g. lr=0.01:1")
    return list(axes.values()), fixed


def _parse_range(text: str, inner: Mapping[str, bool]) -> Axis:
    name, _, content = (part.strip() for part in text.partition("="))
    separator = ":" if ":" in content else ","
    try:
        values = tuple(float(part) for part in content.split(separator))
    except ValueError:
        values = ()
    wrong = not values or not all(map(math.isfinite, values)) or len(set(values)) < len(values)
    if not name or wrong or (separator == ":" and (len(values) != 2 or values[0] >= values[1])):
        raise ConfigError(f"'{text}' must be KEY=VALUE, KEY=VALUE,VALUE,... or KEY=LOW:HIGH, e.g. lr=0.01:1")
    return Axis(name=name, values=values, decay=name in inner and _is_decay(name), range_only=separator == ":")


def _is_decay(name: str) -> bool:
    return name.startswith("beta")


def score(runs: Iterable[Sequence[Record]], kind: Kind = "curve", warm_up: int = 0) -> float | None:
    """Return the mean score of runs, weighted by their rounds after the first `warm_up`; None without such rounds.

    The value of a record is its accuracy or, without a metric, minus its loss. "curve" is the mean over all rounds, so
    that an early high accuracy counts; "best" is the highest value, as in the paper; "last" is the last one.
    """
    total, rounds = 0.0, 0
    for records in runs:
        points = [
            (weight, record.quality[1])
            for before, record in pairwise(records)
            if (weight := record.round - max(before.round, warm_up)) > 0 and record.quality[0] > 0
        ]
        if points:
            length = sum(weight for weight, _ in points)
            mean = sum(weight * value for weight, value in points) / length
            total += length * {"curve": mean, "best": max(value for _, value in points), "last": points[-1][1]}[kind]
            rounds += length
    return total / rounds if rounds else None


def claim_search(out: Path, plan: Plan, study: str) -> None:
    """Make the folder of a search: tune.json, the runs in trials/, and study.db unless there is another storage."""
    content = json.dumps({"study": study, **json.loads(plan.identity())}, indent=2) + "\n"
    shelf.claim_folder(out, "tune.json", content, "search")
