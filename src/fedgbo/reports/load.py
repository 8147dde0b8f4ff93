"""Read run folders, and put the runs that differ only in their seed together."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedgbo.core.errors import RunFolderError
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class RunData:
    """A run as its folder tells it."""

    path: Path
    config: RunConfig
    status: str  # finished, stopped, interrupted, diverged; running; died: neither ended nor running
    records: tuple[Record, ...]
    rounds: int = 0  # planned
    reason: str = ""  # why it diverged


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one setting, over several seeds, at the rounds that all of them evaluated."""

    label: str
    runs: tuple[RunData, ...]
    rounds: Floats  # (R,)
    accuracy: Floats  # (seeds, R)

    def cost(self, name: str, at: int) -> float:
        """Return the mean over seeds of a total ("upload_bytes", "flops", ...) at the `at`-th evaluation."""
        wanted = int(self.rounds[at])
        values = [getattr(r, name) for run in self.runs for r in run.records if r.round == wanted]
        return float(np.mean(values))


def load_run(path: Path) -> RunData:
    """Read one run folder; raise RunFolderError, naming the file, on anything that no run of ours would write."""
    folder = RunFolder(path)
    config, ended = checked_config(folder.config(), path / "run.json"), folder.status()
    records = in_order(folder.records(), path / "metrics.jsonl")
    planned = [config.rounds, ended.get("rounds"), *(record.round for record in records[-1:])]
    rounds = max(number for number in planned if isinstance(number, int))  # a resumed run may go on for longer
    return RunData(path, config, _status(folder, ended), records, rounds, str(ended.get("reason", "")))


def checked_config(content: Mapping[str, Any], file: Path) -> RunConfig:
    """Return what a run is; also of one that was begun from Python, which has a digest of its initial parameters."""
    try:
        config = RunConfig(**{key: value for key, value in content.items() if key != "initial_params"})
        for table in (config.task, config.algorithm):
            if not isinstance(table["name"], str):
                raise TypeError("a name is no text")
        _ = config.label
        json.dumps(config.model_dump(), ensure_ascii=False).encode()  # half of a surrogate pair is no text, either
    except (ValidationError, TypeError, KeyError, AttributeError, UnicodeEncodeError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from error
    return config


def in_order(records: Iterable[Record], file: Path) -> tuple[Record, ...]:
    """Return the records, unless a round comes twice or too late."""
    found = tuple(records)
    for before, record in pairwise(found):
        if record.round <= before.round:
            raise RunFolderError(f"{file} is damaged: round {record.round} does not follow round {before.round}")
    return found


def _status(folder: RunFolder, ended: Mapping[str, Any]) -> str:
    if folder.in_use():  # whatever status.json says: a resumed run still has the one of its last end
        return "running"
    status = ended.get("status")
    if not isinstance(status, str):
        raise RunFolderError(f"{folder.path / 'status.json'} is damaged: its status is {status!r}")
    return "died" if status == "running" else status


def group_runs(runs: Iterable[RunData]) -> list[Group]:
    """Put runs together that differ only in their seed, in the order in which they first come."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        key = json.dumps(run.config.model_dump(exclude={"seed", "rounds", "eval_every", "metrics"}), sort_keys=True)
        together.setdefault(key, []).append(run)
    return [_group(members) for members in together.values()]


def over_seeds(runs: Sequence[RunData], value: Callable[[Record], float | None]) -> tuple[Floats, Floats]:
    """Return the rounds (R,) at which every run has this value, and the values (seeds, R)."""
    found = [{r.round: v for r in run.records if (v := value(r)) is not None} for run in runs]
    shared = sorted(set.intersection(*(set(values) for values in found)))
    table = [[values[r] for r in shared] for values in found]
    return np.array(shared, dtype=np.float64), np.array(table, dtype=np.float64)


def _group(runs: list[RunData]) -> Group:
    rounds, accuracy = over_seeds(runs, lambda record: record.accuracy)
    if not rounds.size:
        raise RunFolderError(f"{runs[0].path} has no accuracy to show yet, or its task has no metric")
    return Group(runs[0].config.label, tuple(runs), rounds, accuracy)
