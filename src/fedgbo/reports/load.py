"""Find and read run folders, and group the runs that differ only in their seed."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record

Floats = np.ndarray[Any, np.dtype[np.float64]]

MARKS = {"run.json", "metrics.jsonl", "checkpoints"}  # a folder with any of them is a run; without the others, damaged
NOT_SETTINGS = {"seed", "rounds", "eval_every", "metrics"}  # runs that differ only in these belong to one group


@dataclass(frozen=True)
class RunData:
    """The content of a run folder."""

    path: Path
    config: RunConfig
    status: str  # finished, stopped, interrupted, diverged, running, or died (neither ended nor running)
    records: tuple[Record, ...]
    rounds: int = 0  # planned
    reason: str = ""  # why it diverged


@dataclass(frozen=True)
class RunProblem:
    """Why a run is not shown, or not shown in full."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Collection:
    """Runs in the order of their paths, and the folders that could not be read."""

    runs: tuple[RunData, ...]
    problems: tuple[RunProblem, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one setting, over several seeds, at the rounds that all of them evaluated."""

    label: str
    runs: tuple[RunData, ...]
    rounds: Floats  # (R,)
    accuracy: Floats  # (seeds, R)


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below each place, each once, in the order of their paths."""
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"there is no folder {place}; give run folders, or folders that contain some")
        for path in sorted(_runs_below(place)):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def collect(places: Iterable[Path]) -> Collection:
    """Read all runs at or below the places; a folder that cannot be read becomes a problem."""
    runs, problems = [], []
    for path in find_runs(places):
        try:
            runs.append(load_run(path))
        except RunFolderError as error:
            problems.append(RunProblem(path, str(error)))
    return Collection(tuple(runs), tuple(problems))


def load_run(path: Path) -> RunData:
    """Read one run folder; raise RunFolderError, naming the file, if its content is damaged."""
    folder = RunFolder(path)
    config, ended = checked_config(folder.config(), path / "run.json"), folder.status()
    records = in_order(folder.records(), path / "metrics.jsonl")
    planned = [config.rounds, ended.get("rounds"), *(record.round for record in records[-1:])]
    rounds = max(number for number in planned if isinstance(number, int))  # a resumed run may be longer
    status = ended.get("status")
    if folder.in_use():  # a resumed run keeps the status.json of its last end
        status = "running"
    elif not isinstance(status, str):
        raise RunFolderError(f"{path / 'status.json'} is damaged: its status is {status!r}")
    elif status == "running":
        status = "died"
    return RunData(path, config, status, records, rounds, str(ended.get("reason", "")))


def checked_config(content: Mapping[str, Any], file: Path) -> RunConfig:
    """Return the configuration of a run; runs started from Python also store a digest of their initial parameters."""
    try:
        config = RunConfig(**{key: value for key, value in content.items() if key != "initial_params"})
        for table in (config.task, config.algorithm):
            if not isinstance(table["name"], str):
                raise TypeError("a name is not a string")
        _ = config.label
        json.dumps(config.model_dump(), ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValidationError, TypeError, KeyError, AttributeError, UnicodeEncodeError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from error
    return config


def in_order(records: Iterable[Record], file: Path) -> tuple[Record, ...]:
    """Return the records; raise RunFolderError unless their rounds increase."""
    found = tuple(records)
    for before, record in pairwise(found):
        if record.round <= before.round:
            raise RunFolderError(f"{file} is damaged: round {record.round} does not follow round {before.round}")
    return found


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their dotted names, such as algorithm.optimiser.lr."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def group_runs(runs: Iterable[RunData]) -> list[Group]:
    """Group runs that differ only in their seed, in the order of their first appearance."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        key = json.dumps(run.config.model_dump(exclude=NOT_SETTINGS), sort_keys=True)
        together.setdefault(key, []).append(run)
    groups = []
    for members in together.values():
        rounds, accuracy = over_seeds(members, lambda record: record.accuracy)
        if not rounds.size:
            raise RunFolderError(f"{members[0].path} has no accuracy to show yet, or its task has no metric")
        groups.append(Group(members[0].config.label, tuple(members), rounds, accuracy))
    return groups


def over_seeds(runs: Sequence[RunData], value: Callable[[Record], float | None]) -> tuple[Floats, Floats]:
    """Return the rounds (R,) at which every run has this value, and the values (seeds, R)."""
    found = [{r.round: v for r in run.records if (v := value(r)) is not None} for run in runs]
    shared = sorted(set.intersection(*(set(values) for values in found)))
    table = [[values[r] for r in shared] for values in found]
    return np.array(shared, dtype=np.float64), np.array(table, dtype=np.float64)


def _runs_below(place: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(place):
        if MARKS & {*inner, *files}:
            inner.clear()  # a run folder contains no other runs
            yield Path(folder)
