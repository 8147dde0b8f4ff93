"""Runs as data: found and read from folders, or kept as a small CSV file, and grouped by all settings but the seed.

A row of the CSV file is an evaluation. Columns of settings are named as in run.json, such as algorithm.optimiser.lr;
names are plain text, other values JSON. A value that a run does not have is an empty cell. Numbers keep all digits.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedgbo.core import ConfigError, FedGBOError, RunFolderError
from fedgbo.reports.table import numbers_csv
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import ACCURACY, OPTIONAL, Record

Floats = np.ndarray[Any, np.dtype[np.float64]]
MARKS = {"run.json", "metrics.jsonl", "checkpoints"}  # a folder with any of them is a run; without the others, damaged
MEASURED = tuple(field.name for field in fields(Record) if field.name not in (*OPTIONAL, "scores"))
TEXT = ("run", "status")  # the folder's name, and how the run ended
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
    named: str = ""  # the name that the task gave itself, if it is known

    @property
    def metric(self) -> str:
        """The name of the task's primary metric."""
        return self.records[0].metric if self.records else ACCURACY

    @property
    def task_name(self) -> str:
        """The task's own name or, if it is not known, that of the function that makes it."""
        return self.named or str(self.config.task["name"]).rpartition(":")[2]


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
    accuracy: Floats  # (seeds, R), of the primary metric

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.runs[0].metric


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below each place, each once, in the order of their paths."""
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"there is no folder {place}; give run folders, or folders that contain some")
        for folder, inner, names in os.walk(place):
            if MARKS & {*inner, *names}:
                inner.clear()  # a run folder contains no other runs
                found.setdefault(Path(folder).resolve(), Path(folder))
            inner.sort()
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
    return RunData(path, config, folder.condition(), records, rounds, str(ended.get("reason", "")), folder.task_name())


DIGESTS = ("initial_params", "constants", "data", "fingerprint")  # of what a run was begun with from Python


def checked_config(content: Mapping[str, Any], file: Path) -> RunConfig:
    """Return the configuration of a run; runs started from Python also store digests of their model and data."""
    try:
        config = RunConfig(**{key: value for key, value in content.items() if key not in DIGESTS})
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


def metrics_csv(runs: Iterable[RunData]) -> str:
    """Write all evaluations of some runs; runs without evaluations are left out."""
    rows = []
    for run in runs:
        given = {key: value for key, value in run.config.model_dump().items() if value is not None and value != []}
        settings = {name: value if name.endswith(".name") else json.dumps(value) for name, value in flatten(given)}
        told = {"run": run.path.name, "status": run.status, **settings}
        rows += [told | {name: getattr(record, name) for name in MEASURED} for record in run.records]
    names = dict.fromkeys(name for row in rows for name in row if name not in MEASURED)
    return numbers_csv([dict.fromkeys(names, "") | row for row in rows])


def read_metrics(file: Path) -> list[RunData]:
    """Undo `metrics_csv`; raise RunFolderError, naming the file, if its content is damaged."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
        runs = groupby(rows, key=lambda row: {key: row[key] for key in row if key not in MEASURED and row[key]})
        return [_run_of_rows(settings, members, file) for settings, members in runs]
    except FedGBOError:
        raise
    except (OSError, csv.Error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunFolderError(f"{file} cannot be read as metrics of runs: {error!r}") from error


def _run_of_rows(settings: Mapping[str, str], rows: Iterable[Mapping[str, str]], file: Path) -> RunData:
    content: dict[str, Any] = {}
    for key, cell in settings.items():
        *path, last = key.split(".")
        inner = content
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = cell if last == "name" or key in TEXT else json.loads(cell)
    name, status = (content.pop(key) for key in TEXT)
    config = checked_config(content, file)
    numbers = [{key: json.loads(row[key]) if row[key] else None for key in MEASURED} for row in rows]
    try:
        records = [Record.of_line(json.dumps(measured)) for measured in numbers]
    except RunFolderError as error:
        raise RunFolderError(f"{file} is damaged: {error}") from error
    rounds = max(config.rounds, records[-1].round)
    return RunData(file.with_name(name), config, status, in_order(records, file), rounds)
