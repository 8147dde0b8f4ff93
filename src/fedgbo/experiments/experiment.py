"""Experiments: TOML files that describe grids of runs, and changes to them from the command line.

Every change that reduces an experiment (a scale, synthetic stand-ins for the data, overrides, a part of it) is stated
in all outputs: in titles, captions and file names.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedgbo.core import ConfigError, FedGBOError, unknown, whole
from fedgbo.experiments.presets import takes_optimiser, task_names
from fedgbo.experiments.request import SETTINGS, Request, parse_entry, parse_override, read_request, read_toml
from fedgbo.experiments.shelf import group_key, identity
from fedgbo.runs.config import RunConfig, Table, explain
from fedgbo.runs.plan import evaluations
from fedgbo.tasks import TASKS

PLURALS = {"tasks": "task", "algorithms": "algorithm", "optimisers": "optimiser", "seeds": "seed"}
SELECTORS = (*PLURALS, "local_steps")
LISTS = ("tasks", "local_steps", "rounds", "algorithms", "optimisers", *SETTINGS, "seeds")  # may be lists: the product
GRID_KEYS = (*PLURALS, *(key for key in Request.model_fields if key not in PLURALS.values()))

FEWEST_SEEDS = 2  # of a shortened run, so that there is still a mean
TEST_SAMPLES, FEWEST_TEST_SAMPLES = 10_000, 200  # of a shortened run: the first times the scale, at least the second
SIZED = {"shakespeare-synthetic": 5573}  # stand-ins with so many samples a client that full gradients take minutes
FEWEST_SAMPLES = 64


@dataclass(frozen=True)
class Changes:
    """Changes to an experiment from the command line; the defaults change nothing."""

    scale: float = 1.0
    stand_ins: bool = False
    overrides: tuple[str, ...] = ()  # key=value
    only: tuple[str, ...] = ()  # tasks and optimisers

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise ConfigError(f"scale must be above 0 and at most 1, not {self.scale}; 0.1 is a tenth of the rounds")
        if wrong := [text for text in self.overrides if "=" not in text]:
            raise ConfigError(f"'{wrong[0]}' must be key=value, e.g. batch_size=16")

    def words(self, configs: Sequence[RunConfig]) -> list[str]:
        """Return the changes in words, with their effect on these runs."""
        said = ["synthetic stand-ins for the data"] if self.stand_ins else []
        if self.scale != 1:
            rounds, samples = (_alternatives(getattr(c, key) for c in configs) for key in ("rounds", "test_samples"))
            seeds = len({config.seed for config in configs})
            said.append(f"scale {self.scale:g}: {rounds} rounds, {seeds} seeds, at most {samples} test samples")
            if texts := {c.task["samples"] for c in configs if c.task["name"] in SIZED}:
                said.append(f"shorter texts: {_alternatives(texts)} samples a client")
        said += [f"with {', '.join(self.overrides)}"] if self.overrides else []
        return said + ([f"only {', '.join(self.only)}"] if self.only else [])

    @property
    def suffix(self) -> str:
        """The changes as a suffix of file names.

        >>> Changes(0.01, stand_ins=True, overrides=("batch_size=4",)).suffix
        '-stand-ins-scale0.01-batch_size4'
        """
        parts = ["stand-ins"] if self.stand_ins else []
        parts += [] if self.scale == 1 else [f"scale{self.scale:g}"]
        parts += [re.sub(r"[^A-Za-z0-9_.-]+", "", text) for text in (*self.overrides, *self.only)]
        return "".join(f"-{part}" for part in parts)

    def of_grid(self, grid: Mapping[str, Any]) -> Table:
        """Return the grid, with stand-ins for its tasks if they are asked for."""
        if not self.stand_ins or "tasks" not in grid:
            return dict(grid)
        return {**grid, "tasks": [_stand_in(task) for task in _values("tasks", grid["tasks"])]}

    def shortened(self, configs: Sequence[RunConfig]) -> list[RunConfig]:
        """Return fewer and shorter runs: the first seeds of each group, a share of the rounds and of the test set."""
        if self.scale == 1:
            return list(configs)
        sizes, seen = Counter(map(group_key, configs)), Counter[str]()
        kept = []
        for config in configs:
            key = group_key(config)
            seen[key] += 1
            if seen[key] <= max(min(sizes[key], FEWEST_SEEDS), math.ceil(sizes[key] * self.scale)):
                kept.append(self._shorter(config))
        return kept

    def _shorter(self, config: RunConfig) -> RunConfig:
        samples = max(FEWEST_TEST_SAMPLES, math.ceil(TEST_SAMPLES * self.scale))
        changed: Table = {
            "rounds": max(1, round(config.rounds * self.scale)),
            "eval_every": max(1, round((config.eval_every or 1) * self.scale)),
            "test_samples": min(samples, config.test_samples or samples),
        }
        if full := SIZED.get(config.task["name"]):
            changed["task"] = {"samples": max(FEWEST_SAMPLES, math.ceil(full * self.scale)), **config.task}
        return config.model_copy(update=changed)


class ExperimentFile(BaseModel):
    """The keys of an experiment's file besides its grid."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None  # by default the file's
    title: str | None = None
    allow_divergence: bool = False
    run: list[Table] = []  # further grids, or the only ones if the file names no algorithms; they inherit its grid
    exclude: list[Table] = []
    override: list[Table] = []


@dataclass(frozen=True)
class Experiment:
    """Different runs, in the order of the file."""

    name: str
    title: str
    configs: tuple[RunConfig, ...]
    allow_divergence: bool = False
    changes: Changes = field(default_factory=Changes)
    notes: tuple[str, ...] = ()  # about the presets used

    @property
    def file_name(self) -> str:
        return f"{self.name}{self.changes.suffix}"

    @property
    def heading(self) -> str:
        return "; ".join([self.title, *self.words])

    @property
    def words(self) -> list[str]:
        return self.changes.words(self.configs)


def read_experiment(file: Path, changes: Changes | None = None) -> Experiment:
    """Read an experiment's file and apply the changes."""
    text, content = read_toml(file)
    try:
        return make_experiment(content, file.stem, changes or Changes())
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, ExperimentFile)) from error
    except FedGBOError as error:
        raise type(error)(f"{file}: {error}") from error


def make_experiment(content: Mapping[str, Any], name: str, changes: Changes) -> Experiment:
    """Turn the content of a file into runs."""
    _check_keys(content, (*ExperimentFile.model_fields, *GRID_KEYS), "experiment")
    about = ExperimentFile(**{key: content[key] for key in ExperimentFile.model_fields if key in content})
    if about.name is not None and Path(about.name).name != about.name:
        raise ConfigError(f"name: '{about.name}' must be a plain file name, without folders")
    grid = changes.of_grid({key: value for key, value in content.items() if key in GRID_KEYS})
    known = {"run": GRID_KEYS, "exclude": (*SELECTORS, "rounds"), "override": GRID_KEYS}
    for kind, keys in known.items():
        for table in getattr(about, kind):
            _check_keys(table, keys, f"[[{kind}]]")
    entries = list(_expand(grid)) if "algorithms" in grid or not about.run else []
    entries += [entry for table in about.run for entry in _expand({**grid, **changes.of_grid(table)})]
    for number, table in enumerate(about.override, start=1):
        selector = {key: table[key] for key in SELECTORS if key in table}
        for entry in _matching(entries, selector, f"[[override]] number {number}"):
            entry.update({key: value for key, value in table.items() if key not in SELECTORS})
    for number, table in enumerate(about.exclude, start=1):
        excluded = {id(entry) for entry in _matching(entries, table, f"[[exclude]] number {number}")}
        entries = [entry for entry in entries if id(entry) not in excluded]
    configs, notes = _resolve(entries, changes)
    if not configs:
        raise ConfigError("no run is left; name tasks, algorithms and seeds, and do not exclude them all")
    each = {identity(config): config for config in changes.shortened(configs)}  # two shortened runs may be the same
    shown = about.name or name
    return Experiment(shown, about.title or shown, tuple(each.values()), about.allow_divergence, changes, tuple(notes))


def only(experiment: Experiment, **wanted: Sequence[str]) -> Experiment:
    """Keep the runs with the named `task`s and `optimiser`s; runs with plain SGD stay with any optimiser."""
    configs = list(experiment.configs)
    for kind, names in wanted.items():
        if not names:
            continue
        present = {name for config in configs for name in _facts(config)[kind]}
        if wrong := [name for name in names if name not in present]:
            raise ConfigError(f"{experiment.name} has no {kind} '{wrong[0]}' (it has: {', '.join(sorted(present))})")
        configs = [config for config in configs if not (facts := _facts(config)[kind]) or facts & set(names)]
    names = tuple(name for listed in wanted.values() for name in listed)
    return replace(experiment, configs=tuple(configs), changes=replace(experiment.changes, only=names))


def _facts(config: RunConfig) -> dict[str, set[str]]:
    optimiser = str((config.algorithm.get("server") or config.algorithm.get("optimiser") or {}).get("name", "sgd"))
    return {"task": set(task_names(str(config.task["name"]))), "optimiser": {optimiser} - {"sgd"}}


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: " + unknown("setting", key, known))


def _expand(grid: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the product of a grid's lists, as tables from which a Request is made.

    An optimiser is combined only with the algorithms that take one. The order is that of `LISTS`, with seeds varying
    fastest; it does not depend on the order of keys in a file.
    """
    lists = {key: _values(key, grid[key]) for key in LISTS if key in grid}
    shared = {key: value for key, value in grid.items() if key not in lists}
    for values in product(*lists.values()):
        entry = {PLURALS.get(key, key): value for key, value in zip(lists, values, strict=True)}
        if isinstance(entry.get("algorithm"), str):
            entry["algorithm"], named = parse_entry(entry["algorithm"])
            takes_one = takes_optimiser(entry["algorithm"])
            entry["optimiser"] = named or (entry.get("optimiser") if takes_one else None)
        yield shared | {key: value for key, value in entry.items() if value is not None}


def _matching(entries: Sequence[Table], selector: Table, where: str) -> list[Table]:
    """Return the runs that a table of [[exclude]] or [[override]] selects; raise if there are none."""
    wanted = {key: [_name(value) for value in _values(key, chosen)] for key, chosen in selector.items()}
    found = [e for e in entries if all(_name(e.get(PLURALS.get(key, key))) in names for key, names in wanted.items())]
    if not found:
        raise ConfigError(f"{where} matches no run; check its names")
    return found


def _values(key: str, value: Any) -> list[Any]:
    if key == "seeds" and not isinstance(value, list):
        whole("seeds", value)
        return list(range(value))
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(f"{key} is an empty list; name at least one, or leave it out")
    return values


def _name(value: Any) -> Any:
    """Return what selectors compare: the name of a table, and the original's name for a stand-in."""
    named = value.get("name") if isinstance(value, Mapping) else value
    return task_names(named.lower())[1] if isinstance(named, str) else named


def _stand_in(task: Any) -> Any:
    name = task.get("name") if isinstance(task, dict) else task
    synthetic = f"{task_names(str(name))[1]}-synthetic"
    if synthetic not in TASKS:
        known = sorted(known.removesuffix("-synthetic") for known in TASKS if known.endswith("-synthetic"))
        raise ConfigError(f"there is no stand-in for {name} (there are for: {', '.join(known)})")
    return {**task, "name": synthetic} if isinstance(task, dict) else synthetic


def _resolve(entries: Sequence[Table], changes: Changes) -> tuple[list[RunConfig], list[str]]:
    """Make each run once, with every default written out."""
    configs: dict[str, RunConfig] = {}
    notes: dict[str, None] = {}
    for entry in entries:
        changed = {"task": Request.model_fields["task"].default, **deepcopy(entry)}
        for override in changes.overrides:
            parse_override(changed, override)
        config, note = read_request(None, changed, ()).resolve()
        config = config.complete()
        config = config.model_copy(update={"eval_every": config.eval_every or evaluations(config.rounds)})
        configs.setdefault(identity(config), config)
        if note:
            notes[f"{config.task['name']} {config.label}: {note}"] = None
    return list(configs.values()), list(notes)


def _alternatives(values: Iterable[Any]) -> str:
    return " or ".join(map(str, sorted(set(values))))
