"""A process that is started with a log, watched, and ended with all that it has started.

It runs in a session of its own, so that Ctrl-C reaches only the command that started it, which ends it in order. If
that command is killed, Linux tells the process to end.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import FederationError
from fedgbo.federation.secret_files import PRIVATE_FILE
from fedgbo.federation.tree import Mark, kill, marks_of

GRACE = 10.0  # seconds that processes get to end by themselves
REST = 2.0  # and what they have started, after they have ended: it has nobody to talk to any more
POLL = 0.05
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PR_SET_PDEATHSIG = 1


@dataclass(eq=False)
class Process:
    """A running process of a federation."""

    name: str
    log: Path
    begin: int  # where in the log this process began
    popen: subprocess.Popen[bytes]
    company: Sequence["Process"] = ()  # that ends with it

    @classmethod
    def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> "Process":
        """Start a command whose output goes to the end of `log`."""
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        with os.fdopen(handle, "ab") as file:
            begin = os.fstat(handle).st_size  # before the child can write: it shares our place in the file
            popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )
            return cls(name, log, begin, popen)

    @property
    def alive(self) -> bool:
        """Whether it is still running; one that is not is reaped."""
        return self.popen.poll() is None

    def said(self) -> str:
        """Return what this process has written so far, without colours."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            return without_colours(file.read().decode("utf-8", errors="replace"))

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition holds; raise if the process ends or the time is over before."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.alive:
                raise FederationError(f"{self.name} ended before {what}; {self.last_words()}")
            if time.monotonic() > end:
                raise FederationError(f"{self.name}: no sign of {what} within {seconds:.0f} s; {self.last_words()}")
            time.sleep(POLL)

    def last_words(self) -> str:
        """Return how it ended, if it did, the last line of its log, and where that lies, for messages."""
        lines = [line.strip() for line in self.said().splitlines() if line.strip()]
        code = self.popen.poll()
        how = "" if code is None else f"killed by {signal.Signals(-code).name}, " if code < 0 else f"exit code {code}, "
        return f"{how}its last words: {lines[-1] if lines else '(none)'}; all of them: {self.log}"


def without_colours(text: str) -> str:
    """Return a log's text without what colours a terminal."""
    return _COLOURS.sub("", text)


def stop(processes: Iterable[Process], seconds: float = GRACE) -> None:
    """End processes and all that they have started: asked first, killed when that takes too long."""
    with _undisturbed():
        _stop([one for process in processes for one in (process, *process.company)], seconds)


def _stop(all_of_them: Sequence[Process], seconds: float) -> None:
    marks = marks_of(process.popen.pid for process in all_of_them if process.alive)
    for process in all_of_them:
        if process.alive:
            process.popen.terminate()
    _wait_until_gone(all_of_them, [], seconds)
    _wait_until_gone([], marks, REST)
    marks = list({*marks, *marks_of(mark.pid for mark in marks if mark.alive)})
    kill(marks)
    for process in all_of_them:
        _kill_group(process)
        process.popen.wait()
    _wait_until_gone([], marks, GRACE)


def _kill_group(process: Process) -> None:
    """End what the process has started and we did not see, but nobody who was given its number after it was reaped.

    A group keeps its number from being given out again, so a process that has it now is a stranger.
    """
    if process.alive or not marks_of([process.popen.pid]):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.popen.pid, signal.SIGKILL)


def _wait_until_gone(processes: Sequence[Process], marks: Sequence[Mark], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running = [process.alive for process in processes]  # asked of each, since that reaps it
        if not any(running) and not any(mark.alive for mark in marks):
            return
        time.sleep(POLL)


def end_with(parent: int) -> Callable[[], None] | None:
    """Return what a child does first: ask Linux for a signal when its parent, `parent`, is gone."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before we asked
            os._exit(1)

    return ask


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second Ctrl-C interrupt us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
