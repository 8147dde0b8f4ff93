"""Read run folders, and put the runs that differ only in their seed together."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core.errors import RunFolderError
from fedgbo.runs.config import RunConfig
from fedgbo.runs.execute import read_config
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class RunData:
    """A run as its folder tells it."""

    path: Path
    config: RunConfig
    status: str
    records: tuple[Record, ...]


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
    """Read one run folder."""
    folder = RunFolder(path)
    status = folder.status().get("status")
    if not isinstance(status, str):
        raise RunFolderError(f"{path / 'status.json'} is damaged: its status is {status!r}")
    return RunData(path, read_config(path), status, tuple(folder.records()))


def group_runs(runs: Iterable[RunData]) -> list[Group]:
    """Put runs together that differ only in their seed, in the order in which they first come."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        key = json.dumps(run.config.model_dump(exclude={"seed", "rounds", "eval_every", "metrics"}), sort_keys=True)
        together.setdefault(key, []).append(run)
    return [_group(members) for members in together.values()]


def _group(runs: list[RunData]) -> Group:
    shared = set.intersection(*({r.round for r in run.records if r.accuracy is not None} for run in runs))
    if not shared:
        raise RunFolderError(f"{runs[0].path} has no accuracy to show yet, or its task has no metric")
    rounds = np.array(sorted(shared), dtype=np.float64)
    accuracy = np.array(
        [[r.accuracy for r in sorted(run.records, key=lambda r: r.round) if r.round in shared] for run in runs],
        dtype=np.float64,
    )
    return Group(runs[0].config.label, tuple(runs), rounds, accuracy)
