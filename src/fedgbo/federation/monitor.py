"""Follows a run: its events as they come, the server app's log, how it ended, and the digest of its result."""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import FederationError, RunFolderError
from fedgbo.federation.control import Control, Status
from fedgbo.federation.credentials import PRIVATE_FILE
from fedgbo.federation.processes import Tail, without_colours
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import execute, read_config
from fedgbo.runs.folder import RunFolder

EVENT_SECONDS = 0.1  # between reads of the events
STATUS_SECONDS = 1.0  # between queries to the SuperLink
SILENT = "No heartbeat"  # Flower's status, after about a minute, of a server app that was killed


@dataclass(frozen=True)
class Event:
    """One line of events.jsonl: its kind, and all fields; a missing field is None."""

    kind: str
    content: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.content.get(key)


class EventFile:
    """The events.jsonl that the server app writes into the run folder; each event is read once."""

    def __init__(self, run_folder: Path, skip: bool = False) -> None:
        """`skip` ignores the events that exist already, such as those of a resumed run's past."""
        self.path = run_folder / "events.jsonl"
        self._tail = Tail(self.path, self.path.stat().st_size if skip and self.path.exists() else 0)

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        for line in self._tail.lines():
            try:
                content = json.loads(line)
            except ValueError:  # cut off by a kill, then continued by the resumed run
                continue
            if isinstance(content, dict) and isinstance(content.get("kind"), str):
                yield Event(content["kind"], content)


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    completed: bool
    reason: str  # why it did not complete, else empty
    digest: str | None  # of the parameters and statistics, if it finished


def follow(
    control: Control,
    run: int,
    events: EventFile,
    show: Callable[[Event], None],
    check: Callable[[], None] = lambda: None,
) -> Ending:
    """Pass a run's events to `show` until the run is over; `check` is called meanwhile, and may raise."""
    stopped, result, began = "", None, False
    asked, status = 0.0, Status("pending", "", "")
    while True:
        over = status.stage == "finished"
        for event in events.new():
            show(event)
            began = True
            stopped = str(event["reason"]) if event.kind == "stopped" else stopped
            result = str(event["digest"]) if event.kind == "finished" else result
        if over:
            break
        check()
        if time.monotonic() - asked > STATUS_SECONDS:
            status, asked = control.status(run), time.monotonic()
            if began and not (stopped or result) and not RunFolder(events.path.parent).in_use():
                began = False
                for event in events.new():  # it may have ended in order just now
                    show(event)
                    stopped = str(event["reason"]) if event.kind == "stopped" else stopped
                    result = str(event["digest"]) if event.kind == "finished" else result
                if not (stopped or result):  # Flower would notice after a minute
                    control.stop(run)
                    stopped = "the server's app died or was killed"
        if status.stage != "finished":
            time.sleep(EVENT_SECONDS)
    if status.outcome == "completed":  # without a result if its folder is on another file system
        return Ending(True, "", result)
    if not stopped and SILENT in status.details:
        stopped = f"the server's app died or was killed (Flower says: {status.details})"
    return Ending(False, stopped or status.details or status.outcome or "it ended early", result)


@contextmanager
def attended(control: Control, run: int, file: Path) -> Iterator[None]:
    """Append the server app's log to a file meanwhile; stop the run if the block is left by an exception."""

    def write() -> None:
        with suppress(Exception), file.open("a", encoding="utf-8") as target:  # a broken log stream stops nothing
            for piece in control.log(run):
                target.write(without_colours(piece))
                target.flush()

    file.touch(mode=PRIVATE_FILE)
    writer = threading.Thread(target=write, daemon=True, name="server log")
    writer.start()
    try:
        yield
    except BaseException:
        with suppress(FederationError):
            control.stop(run)  # also ends the log stream, for which the SuperLink would wait
        raise
    finally:
        writer.join(timeout=2.0)  # for the last lines when the run is over


def digest_of(run: Path) -> str:
    """Return the digest of a finished run's parameters and statistics."""
    folder = RunFolder.open(run)
    if (status := folder.status()["status"]) != "finished":
        raise RunFolderError(f"the run in {run} is not finished ({status}); there is nothing to compare")
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        raise RunFolderError(f"{run} has no checkpoint")
    return digest(checkpoint.state.tensors())


def simulated(run: Path) -> str:
    """Repeat the run in a folder without a federation, as `fedgbo run` does, and return the result's digest."""
    with tempfile.TemporaryDirectory(prefix="fedgbo-") as place:
        return digest(execute(read_config(run), Path(place) / "run").state.tensors())
