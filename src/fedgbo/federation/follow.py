"""Follow a run from its start to its end: events as they come, the server's log into a file, and how it ended."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import FederationError
from fedgbo.federation.control import Control, Status
from fedgbo.federation.events import Event, EventFile
from fedgbo.federation.process import Process, without_colours
from fedgbo.federation.secret_files import PRIVATE_FILE

EVENT_SECONDS = 0.1  # between two looks at the events
STATUS_SECONDS = 1.0  # between two questions to the SuperLink
SILENT = "No heartbeat"  # what Flower says, after about a minute, of a server's app that was killed


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    completed: bool
    reason: str  # why it did not, else empty
    digest: str | None  # of the parameters and statistics, if it was finished


def follow(
    control: Control,
    run: int,
    events: EventFile,
    show: Callable[[Event], None],
    processes: Sequence[Process] = (),
    lost: Callable[[Process], None] = lambda process: None,
) -> Ending:
    """Show a run's events until it is over.

    The first of `processes`, if there are any, is the SuperLink, without which nothing goes on; of the others `lost` is
    told once each when they end, and the run goes on without them as far as it can.
    """
    stopped, digest = "", None
    gone: set[int] = set()
    asked, status = 0.0, Status("pending", "", "")
    while True:
        over = status.over
        for event in events.new():
            show(event)
            stopped = str(event["reason"]) if event.kind == "stopped" else stopped
            digest = str(event["digest"]) if event.kind == "finished" else digest
        if over:
            break
        for number, process in enumerate(processes):
            if number not in gone and not process.alive:
                gone.add(number)
                if number == 0:
                    raise FederationError(f"the SuperLink is gone; {process.last_words()}")
                lost(process)
        if time.monotonic() - asked > STATUS_SECONDS:
            status, asked = control.status(run), time.monotonic()
        if not status.over:
            time.sleep(EVENT_SECONDS)
    completed = status.outcome == "completed" and digest is not None
    return Ending(completed, "" if completed else stopped or _reason(status), digest)


def _reason(status: Status) -> str:
    if SILENT in status.details:
        return f"the server's app died or was killed (Flower says: {status.details})"
    return status.details or status.outcome or "it ended early"


@contextmanager
def attended(control: Control, run: int, file: Path) -> Iterator[None]:
    """Write what the server's app logs to the end of a file, meanwhile; stop the run if we do not stay to its end."""

    def write() -> None:
        with suppress(Exception), file.open("a", encoding="utf-8") as target:  # a log that breaks off stops nothing
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
            control.stop(run)  # which also ends the stream of the log, for which the SuperLink would wait
        raise
    finally:
        writer.join(timeout=2.0)  # for what is on its way when the run is over
