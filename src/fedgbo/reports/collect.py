"""Find run folders below the places a user names, and read them: what cannot be read is named, never dropped."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.reports.load import RunData, load_run

MARKS = {"run.json", "metrics.jsonl", "checkpoints"}  # a folder that lost one of them is a damaged run, not no run


@dataclass(frozen=True)
class Problem:
    """A run that is not shown, or not as a reader would expect, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Collection:
    """Runs, in the order of their paths, and what was wrong with others."""

    runs: tuple[RunData, ...]
    problems: tuple[Problem, ...]


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below each place, each once, in the order of their paths."""
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"there is no folder {place}; name run folders, or folders that hold some")
        for path in sorted(_below(place)):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def collect(places: Iterable[Path]) -> Collection:
    """Read all runs at or below the places."""
    runs, problems = [], []
    for path in find_runs(places):
        try:
            runs.append(load_run(path))
        except RunFolderError as error:
            problems.append(Problem(path, str(error)))
    return Collection(tuple(runs), tuple(problems))


def _below(place: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(place):
        if MARKS & {*inner, *files}:
            inner.clear()  # runs do not hold runs
            yield Path(folder)
