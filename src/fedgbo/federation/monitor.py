"""Follows a run: its events as they come, how it ended, and the digest of its result."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import FederationError, RunFolderError
from fedgbo.federation.control import Control, NoAnswer, Status
from fedgbo.federation.processes import Tail
from fedgbo.federation.superlink import ServerFolder
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import execute, read_config
from fedgbo.runs.folder import RunFolder

EVENT_SECONDS = 0.1  # between reads of the events
PENDING_SECONDS = 180.0  # for the server's app to start; about 3 on an idle machine
STATUS_SECONDS = 1.0  # between queries to the SuperLink
SILENT_SECONDS = 120.0  # without an answer of the SuperLink, after which it is given up
LAST_EVENT_SECONDS = 10.0  # in which a server app that ends in order saves its model and writes its last event
DIED_SECONDS = 3.0  # the same if the run's folder does not say how the run ended
COUNTED = {  # kinds of events that are counted, and the names of the counts
    "done_round": "rounds",
    "abandoned": "abandoned_rounds",
    "rejected": "rejected_updates",
    "dropped": "dropped_updates",
    "late": "late_updates",
    "refused": "refused_nodes",
}


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


class RunCounts:
    """Counts what happened in the runs that a server started; each event is read once."""

    def __init__(self, server: ServerFolder) -> None:
        self._server, self._files = server, dict[Path, EventFile]()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def read(self) -> Mapping[tuple[str, str, str], int]:
        """Return the counts so far, by what, the run's name, and the node's name where there is one."""
        for entry in self._server.audited("start"):
            folder = Path(entry["options"]["run-folder"])
            for event in self._files.setdefault(folder, EventFile(folder)).new():
                if event.kind in COUNTED:
                    self._counts[COUNTED[event.kind], folder.name, event["node"] or ""] += 1
        return self._counts


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    completed: bool
    reason: str  # why it did not complete, else empty
    digest: str | None  # of the parameters and statistics, if it finished


class _Heard:
    """What a run's events have told so far."""

    def __init__(self, events: EventFile) -> None:
        self.stopped, self.digest = "", None
        self._events, self._began, self._idle = events, False, float("inf")

    def read(self, show: Callable[[Event], None]) -> None:
        """Pass the new events to `show`, and note how the run ended."""
        for event in self._events.new():
            show(event)
            self._began = True
            self.stopped = str(event["reason"]) if event.kind == "stopped" else ""  # a resumed run goes on after it
            self.digest = event["digest"] if event.kind == "finished" else None

    def app_died(self) -> bool:
        """Whether the server's app let go of the run's folder without a last event, for some seconds."""
        awaited = self._began and not self.stopped and not self.digest
        condition = RunFolder(self._events.path.parent).condition() if awaited else "running"
        self._idle = min(self._idle, time.monotonic()) if condition != "running" else float("inf")
        return time.monotonic() - self._idle > (DIED_SECONDS if condition == "died" else LAST_EVENT_SECONDS)


def follow(
    control: Control,
    run: int,
    events: EventFile,
    show: Callable[[Event], None],
    check: Callable[[], None] = lambda: None,
) -> Ending:
    """Pass a run's events to `show` until the run is over; `check` is called meanwhile, and may raise."""
    heard, asked, status = _Heard(events), 0.0, Status("pending", "", "")
    patience, answered = time.monotonic() + PENDING_SECONDS, time.monotonic()
    while True:
        over = status.stage == "finished"
        heard.read(show)
        if over:
            break
        check()
        if time.monotonic() - asked > STATUS_SECONDS:
            asked = time.monotonic()
            try:
                status, answered = control.status(run), asked
            except NoAnswer:  # `serve` starts a SuperLink again that was killed
                if asked - answered > SILENT_SECONDS:
                    raise
                continue
            if heard.app_died():  # Flower would notice after a minute
                control.stop(run)
                heard.stopped = "the server's app died or was killed"
            if status.stage in ("pending", "starting") and time.monotonic() > patience:
                raise FederationError(
                    f"the server did not start the app within {PENDING_SECONDS:.0f} s; its apps.log says more"
                )
        if status.stage != "finished":
            time.sleep(EVENT_SECONDS)
    if status.outcome == "completed":  # without a digest if the run's folder is on another file system
        return Ending(True, "", heard.digest)
    return Ending(False, heard.stopped or status.details or status.outcome or "it ended early", heard.digest)


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


def for_prometheus(values: Iterable[tuple[str, Mapping[str, str], float]]) -> bytes:
    """Return names, labels and values in the format of Prometheus; names that end in `_total` are counters."""
    lines: dict[str, None] = {}  # in order, each once
    for name, labels, value in sorted(values, key=lambda one: one[0]):
        lines[f"# TYPE fedgbo_{name} {'counter' if name.endswith('_total') else 'gauge'}"] = None
        told = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items() if text)
        lines[f"fedgbo_{name}{{{told}}} {value}" if told else f"fedgbo_{name} {value}"] = None
    return ("\n".join(lines) + "\n").encode()
