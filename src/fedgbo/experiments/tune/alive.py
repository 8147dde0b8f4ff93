"""Who still works: a lock for the workers on one machine, which a kill -9 frees at once, and beats for the others."""

import fcntl
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from uuid import uuid4

BEAT_SECONDS = 15.0
GRACE_SECONDS = 120.0  # without a beat, after which a worker elsewhere is taken for dead


class Worker:
    """This process in the folder `out`: it holds the lock on a file of its own as long as it lives."""

    def __init__(self, out: Path) -> None:
        self.id = uuid4().hex
        self.folder = folder_id(out)
        self._path = out / "workers" / self.id
        self._lock: TextIOWrapper | None = None

    def __enter__(self) -> "Worker":
        self._path.parent.mkdir(exist_ok=True)
        self._lock = self._path.open("a")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
            self._lock.close()

    def sees(self, other: str) -> bool:
        """Return whether another worker of this folder is alive."""
        try:
            with (self._path.parent / other).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def folder_id(out: Path) -> str:
    """Return the folder's own name, the same for all who share the folder itself and not only its path."""
    with (out / "folder.id").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several may begin at the same time
        file.seek(0)
        if not (name := file.read()):
            name = uuid4().hex
            file.write(name)
    return name


class Watch:
    """When beats of workers elsewhere were last seen to change, by our own clock: theirs may differ."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._seen: dict[int, tuple[int, float]] = {}

    def stopped(self, trial: int, beat: int) -> bool:
        """Note the trial's beat; return whether it has been the same for too long."""
        last, since = self._seen.get(trial, (-1, 0.0))
        if beat != last:
            self._seen[trial] = beat, time.monotonic()
            return False
        return time.monotonic() - since > self._grace


class Beats:
    """Calls `beat` with 1, 2, ... now and then, as long as the block lasts."""

    def __init__(self, beat: Callable[[int], None], seconds: float = BEAT_SECONDS) -> None:
        self._beat, self._seconds = beat, seconds
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._seconds):
            number += 1
            self._beat(number)
