"""Progress of running experiments, read from their folders: rounds, accuracy, speed and estimated end of each run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core import RunFolderError
from fedgbo.reports.load import find_runs, load_run
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import ACCURACY

RECENT = 5  # evaluations that the speed is measured over
FILES = ("run.json", "metrics.jsonl", "status.json", "checkpoints")  # at least one changes when a run progresses


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
    metric: str = ACCURACY
    latest: float | None = None  # of the metric
    best: float | None = None
    seconds_per_round: float | None = None
    ends_at: float | None = None  # seconds since the epoch; None unless the run is running
    problem: str = ""
    config: RunConfig | None = None


class Follower:
    """Views of all runs below a folder; only runs whose files changed since the last look are read again."""

    def __init__(self, place: Path, clock: Callable[[], float] = time.time) -> None:
        self.place = place
        self.clock = clock
        self._seen: dict[Path, tuple[object, View]] = {}

    def look(self) -> list[View]:
        """Return every run, in the order of paths."""
        seen: dict[Path, tuple[object, View]] = {}
        for path in find_runs([self.place]):
            mark = (*(_changed(path / name) for name in FILES), RunFolder(path).in_use())
            before = self._seen.get(path)
            seen[path] = before if before is not None and before[0] == mark else (mark, _view(path, self.clock()))
        self._seen = seen
        return [view for _, view in seen.values()]


def _view(path: Path, now: float) -> View:
    try:
        run = load_run(path)
    except RunFolderError as error:
        return View(path, problem=str(error))
    saved = [file.stem.rpartition("-")[2] for file in RunFolder(path).checkpoints()]
    newest = [int(name) for name in saved if name.isdecimal()]  # may be newer than the last evaluation
    reached = max([0, *newest, *(record.round for record in run.records[-1:])])
    scores = [record.accuracy for record in run.records if record.accuracy is not None]
    recent, speed = run.records[-RECENT:], None
    if len(recent) > 1:
        speed = (recent[-1].seconds - recent[0].seconds) / (recent[-1].round - recent[0].round)
    return View(
        path=path,
        label=run.config.label,
        task=run.task_name,
        seed=run.config.seed,
        status=run.status,
        round=reached,
        rounds=run.rounds,
        metric=run.metric,
        latest=scores[-1] if scores else None,
        best=max(scores, default=None),
        seconds_per_round=speed,
        ends_at=now + (run.rounds - reached) * speed if run.status == "running" and speed is not None else None,
        problem=run.reason,
        config=run.config,
    )


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
