"""An experiment: a TOML file that names many runs, and the runs that come of it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedgbo.core.errors import ConfigError, FedGBOError
from fedgbo.experiments.changes import Changes
from fedgbo.experiments.grid import GRID_KEYS, SELECTORS, check_keys, expand, matches
from fedgbo.experiments.request import Request, explain, parse_override, read_request, read_toml
from fedgbo.experiments.shelf import identity
from fedgbo.runs.config import RunConfig, Table
from fedgbo.runs.loop import evaluations


class ExperimentFile(BaseModel):
    """What an experiment's file says besides its grid."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None  # by default the file's
    title: str | None = None
    allow_divergence: bool = False
    run: list[Table] = []  # further grids, or the only ones if the file names no algorithms; the rest is as in the file
    exclude: list[Table] = []
    override: list[Table] = []


@dataclass(frozen=True)
class Experiment:
    """Runs, each once, in the order of the file."""

    name: str
    title: str
    configs: tuple[RunConfig, ...]
    allow_divergence: bool = False
    changes: Changes = field(default_factory=Changes)
    notes: tuple[str, ...] = ()  # what presets filled in

    @property
    def file_name(self) -> str:
        """What its tables and pictures are called: a shortened experiment says so."""
        return f"{self.name}{self.changes.suffix}"

    @property
    def heading(self) -> str:
        """Its title, with all that makes it less than what the file says."""
        return "; ".join([self.title, *self.words])

    @property
    def words(self) -> list[str]:
        """What makes it less than what the file says."""
        return self.changes.words(self.configs)


def read_experiment(file: Path, changes: Changes | None = None) -> Experiment:
    """Read a file, and change what the command line asks to be changed."""
    text, content = read_toml(file)
    try:
        return make_experiment(content, file.stem, changes or Changes())
    except ValidationError as error:
        raise ConfigError(explain(error, file, text, ExperimentFile)) from error
    except FedGBOError as error:
        raise type(error)(f"{file}: {error}") from error


def make_experiment(content: Mapping[str, Any], name: str, changes: Changes) -> Experiment:
    """Turn the content of a file into runs."""
    check_keys(content, (*ExperimentFile.model_fields, *GRID_KEYS), "experiment")
    about = ExperimentFile(**{key: content[key] for key in ExperimentFile.model_fields if key in content})
    if about.name is not None and Path(about.name).name != about.name:
        raise ConfigError(f"name: '{about.name}' must be a plain file name, without folders")
    grid = changes.of_grid({key: value for key, value in content.items() if key in GRID_KEYS})
    for kind, tables, known in (
        ("run", about.run, GRID_KEYS),
        ("exclude", about.exclude, (*SELECTORS, "rounds")),
        ("override", about.override, GRID_KEYS),
    ):
        for table in tables:
            check_keys(table, known, f"[[{kind}]]")
    entries = list(expand(grid)) if "algorithms" in grid or not about.run else []
    entries += [entry for table in about.run for entry in expand({**grid, **changes.of_grid(table)})]
    entries = _excluded(_overridden(entries, about.override), about.exclude)
    configs, notes = _resolve(entries, changes)
    if not configs:
        raise ConfigError("no run is left; name tasks, algorithms and seeds, and do not exclude them all")
    each = {identity(config): config for config in changes.shortened(configs)}  # shortened, two may be the same
    return Experiment(
        name=about.name or name,
        title=about.title or about.name or name,
        configs=tuple(each.values()),
        allow_divergence=about.allow_divergence,
        changes=changes,
        notes=tuple(notes),
    )


def only(experiment: Experiment, **wanted: Sequence[str]) -> Experiment:
    """Keep the runs with the named `task`s and `optimiser`s; runs without an optimiser stay whatever is asked."""
    configs = list(experiment.configs)
    for kind, names in wanted.items():
        if not names:
            continue
        there = {name for config in configs for name in _facts(config)[kind]}
        if strange := [name for name in names if name not in there]:
            raise ConfigError(f"{experiment.name} has no {kind} '{strange[0]}' (it has: {', '.join(sorted(there))})")
        configs = [config for config in configs if not (facts := _facts(config)[kind]) or facts & set(names)]
    names = tuple(name for listed in wanted.values() for name in listed)
    return replace(experiment, configs=tuple(configs), changes=replace(experiment.changes, only=names))


def _facts(config: RunConfig) -> dict[str, set[str]]:
    task = str(config.task["name"])
    optimiser = str((config.algorithm.get("server") or config.algorithm.get("optimiser") or {}).get("name", "sgd"))
    return {"task": {task, task.removesuffix("-synthetic")}, "optimiser": {optimiser} - {"sgd"}}


def _overridden(entries: list[Table], overrides: Sequence[Table]) -> list[Table]:
    for number, table in enumerate(overrides, start=1):
        chosen = [entry for entry in entries if matches(entry, _selector(table))]
        if not chosen:
            raise ConfigError(f"[[override]] number {number} fits no run; check its names")
        for entry in chosen:
            entry.update({key: value for key, value in table.items() if key not in SELECTORS})
    return entries


def _excluded(entries: list[Table], excluded: Sequence[Table]) -> list[Table]:
    for number, table in enumerate(excluded, start=1):
        kept = [entry for entry in entries if not matches(entry, table)]
        if len(kept) == len(entries):
            raise ConfigError(f"[[exclude]] number {number} fits no run; check its names")
        entries = kept
    return entries


def _selector(table: Table) -> Table:
    return {key: value for key, value in table.items() if key in SELECTORS}


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
