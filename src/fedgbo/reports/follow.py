"""Running experiments as their folders tell it: how far each run is, how good, how fast, and when it will be done."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import RunFolderError
from fedgbo.reports.collect import find_runs
from fedgbo.reports.load import RunData, load_run
from fedgbo.runs.folder import RunFolder

RECENT = 5  # evaluations from which the speed is taken
FILES = ("run.json", "metrics.jsonl", "status.json", "checkpoints")  # what changes when a run goes on


@dataclass(frozen=True)
class View:
    """One run at one moment."""

    path: Path
    label: str = ""
    task: str = ""
    seed: int | None = None
    status: str = "damaged"
    round: int = 0
    rounds: int = 0
    latest: float | None = None  # accuracy
    best: float | None = None
    seconds_per_round: float | None = None
    ends_at: float | None = None  # seconds since the epoch; None unless it runs
    problem: str = ""


class Follower:
    """Looks at all runs below a folder, again and again, and reads only what has changed."""

    def __init__(self, place: Path, clock: Callable[[], float] = time.time) -> None:
        self.place = place
        self.clock = clock
        self._seen: dict[Path, tuple[object, View]] = {}

    def look(self) -> list[View]:
        """Return every run, in the order of paths."""
        seen: dict[Path, tuple[object, View]] = {}
        for path in find_runs([self.place]):
            mark = (_mark(path), RunFolder(path).in_use())
            before = self._seen.get(path)
            seen[path] = before if before is not None and before[0] == mark else (mark, self._view(path))
        self._seen = seen
        return [view for _, view in seen.values()]

    def _view(self, path: Path) -> View:
        try:
            run = load_run(path)
        except RunFolderError as error:
            return View(path, problem=str(error))
        return view_of(run, _newest_round(path), self.clock())


def view_of(run: RunData, newest_round: int, now: float) -> View:
    """Return what can be said of a run whose newest round, evaluated or not, is given."""
    scores = [record.accuracy for record in run.records if record.accuracy is not None]
    reached = max([newest_round, *(record.round for record in run.records[-1:])])
    speed = seconds_per_round(run)
    left = run.rounds - reached
    return View(
        path=run.path,
        label=run.config.label,
        task=run.config.task["name"].rpartition(":")[2],
        seed=run.config.seed,
        status=run.status,
        round=reached,
        rounds=run.rounds,
        latest=scores[-1] if scores else None,
        best=max(scores) if scores else None,
        seconds_per_round=speed,
        ends_at=now + left * speed if run.status == "running" and speed is not None else None,
        problem=run.reason,
    )


def seconds_per_round(run: RunData) -> float | None:
    """Return the speed over the last evaluations; None before there are two."""
    recent = run.records[-RECENT:]
    if len(recent) < 2:
        return None
    return (recent[-1].seconds - recent[0].seconds) / (recent[-1].round - recent[0].round)


def _newest_round(path: Path) -> int:
    """Return the round of the newest checkpoint: it may be newer than the last evaluation."""
    names = [file.stem.rpartition("-")[2] for file in RunFolder(path).checkpoints()]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _mark(path: Path) -> tuple[object, ...]:
    return tuple(_changed(path / name) for name in FILES)


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
