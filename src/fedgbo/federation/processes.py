"""Processes of a federation: their environment, start, restart, logs, and the end of whole process trees.

Each process runs in its own session, so that Ctrl-C reaches only the command that started it, which then stops it in
order. If that command is killed, Linux sends the process SIGTERM. Flower's SuperLink starts its helpers in sessions of
their own, so a process group does not hold them all. On Linux, /proc lists them; elsewhere only the process itself is
seen, and its helpers end when they notice that it is gone.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedgbo.core import FederationError, FedGBOError
from fedgbo.federation.credentials import PRIVATE_FILE, private_folder, require_flower

GRACE = 10.0  # seconds for processes to end after SIGTERM
HELPER_GRACE = 2.0  # seconds for their helpers to end after them
POLL = 0.05
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a new start
MOST_STARTS = 10  # in a row
STEADY = 600.0  # seconds after which a process counts as started well
LOG_BYTES, LOG_FILES = 10_000_000, 5  # of a rotating log
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # the default is a second for each message
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
LAUNCH = (sys.executable, "-P", str(Path(__file__).with_name("launch.py")))  # runs Flower's commands
DIRECT = "localhost,127.0.0.1,::1"  # hosts reached without a web proxy
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process with `home` for its files; the user's FLWR_* variables are removed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    past = kept.get("NO_PROXY") or kept.get("no_proxy")
    direct = f"{past},{DIRECT}" if past else DIRECT
    require_flower()
    home = private_folder(home).absolute()
    return {**kept, **QUIET, "FLWR_HOME": str(home), "NO_PROXY": direct, "no_proxy": direct}


@dataclass(eq=False)
class Process:
    """A running process of a federation."""

    name: str
    log: Path
    begin: int  # offset in the log at which this process began
    popen: subprocess.Popen[bytes]
    helpers: Sequence["Process"] = ()  # stopped together with it

    @classmethod
    def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> "Process":
        """Start a command whose output is appended to `log`."""
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        with os.fdopen(handle, "ab") as file:
            begin = os.fstat(handle).st_size  # before the child writes: it shares our file offset
            popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # its files too are readable by this user only, those of a run included
                preexec_fn=end_with(os.getpid()),
            )
            return cls(name, log, begin, popen)

    @property
    def alive(self) -> bool:
        """Whether it is still running; an ended process is reaped."""
        return self.popen.poll() is None

    def output(self) -> str:
        """Return what this process has written so far, without colours."""
        with self.log.open("rb") as file:
            file.seek(self.begin if self.begin <= os.fstat(file.fileno()).st_size else 0)  # the log may be rotated
            return without_colours(file.read().decode("utf-8", errors="replace"))

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until the condition holds; raise FederationError if the process or the time ends first."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.alive:
                raise FederationError(f"{self.name} ended before {what}; {self.last_words()}")
            if time.monotonic() > end:
                raise FederationError(f"{self.name}: no sign of {what} within {seconds:.0f} s; {self.last_words()}")
            time.sleep(POLL)

    def last_words(self) -> str:
        """Return its exit code or signal, the last line of its output, and the log's path, for messages."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        code = self.popen.poll()
        how = "" if code is None else f"killed by {signal.Signals(-code).name}, " if code < 0 else f"exit code {code}, "
        return f"{how}last line of output: {lines[-1] if lines else '(none)'}; log: {self.log}"


def rotate(log: Path) -> None:
    """Move a full log's content to the next file, and keep the last ones; processes go on writing into `log`."""
    if not log.exists() or log.stat().st_size <= LOG_BYTES:
        return
    older = [log.with_name(f"{log.name}.{number}") for number in range(1, LOG_FILES + 1)]
    for old, new in zip(older[-2::-1], older[:0:-1], strict=True):
        if old.exists():
            old.replace(new)
    shutil.copyfile(log, older[0])
    older[0].chmod(PRIVATE_FILE)
    os.truncate(log, 0)  # processes append, so they continue at the beginning


def without_colours(text: str) -> str:
    """Return text without terminal colours."""
    return _COLOURS.sub("", text)


class Tail:
    """Reads the lines appended to a file; an incomplete last line is left for the next time."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path, self._offset = path, begin

    def lines(self) -> list[str]:
        """Return the complete lines since the last call; none if the file does not exist."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # the file was rotated
                file.seek(self._offset)  # not read from the start: a node's log grows for weeks
                complete, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(complete) + len(newline)
        return complete.decode("utf-8", errors="replace").splitlines()


@dataclass(frozen=True)
class ProcessId:
    """A process id with its start time, because ids are reused."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether the process still runs, and is not merely waiting to be reaped."""
        stat = _stat(self.pid)
        return stat is not None and stat[2] == self.started and stat[0] not in "ZX"

    def signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return a process's state, parent and start time."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name before may contain spaces and brackets
    return fields[0], int(fields[1]), int(fields[19])


def process_tree(pids: Iterable[int]) -> list[ProcessId]:
    """Return these processes and all their descendants."""
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []
    table = {number: stat for number in numbers if (stat := _stat(number)) is not None}
    children: dict[int, list[int]] = {}
    for number, (_, parent, _) in table.items():
        children.setdefault(parent, []).append(number)
    found: dict[int, ProcessId] = {}
    waiting = list(pids)
    while waiting:
        number = waiting.pop()
        if number in table and number not in found:
            found[number] = ProcessId(number, table[number][2])
            waiting += children.get(number, [])
    return list(found.values())


def stop(processes: Iterable[Process], seconds: float = GRACE) -> None:
    """Stop processes and their descendants: SIGTERM first, SIGKILL after `seconds`."""
    everyone = [one for process in processes for one in (process, *process.helpers)]
    with _uninterrupted():
        tree = process_tree(process.popen.pid for process in everyone if process.alive)
        for process in everyone:
            if process.alive:
                process.popen.terminate()
        _wait_until_gone(everyone, seconds)
        _wait_until_gone(tree, HELPER_GRACE)
        tree = list({*tree, *process_tree(one.pid for one in tree if one.alive)})
        for one in tree:
            one.signal(signal.SIGKILL)
        for process in everyone:
            # Also kill unseen members of its group, but not a new process that was given the id of the reaped one: the
            # id of a group that still has members is not reused
            if process.alive or not process_tree([process.popen.pid]):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
        _wait_until_gone(tree, GRACE)


def _wait_until_gone(processes: Sequence[Process | ProcessId], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running = [process.alive for process in processes]  # of each, because that reaps it
        if not any(running):
            return
        time.sleep(POLL)


@dataclass(eq=False)
class Service:
    """A process, and how to start it."""

    start: Callable[[], Process]
    starts: int = 0  # in a row, without the first
    due: float = 0.0  # when it is to be started again
    ended: bool = False
    process: Process = field(init=False)
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.process, self.since = self.start(), time.monotonic()


def attend(services: Iterable[Service], tell: Callable[[str], None]) -> None:
    """Look at services once, and start those again that ended; raise FederationError if one ends again and again."""
    for service in services:
        with suppress(OSError):  # a full disk
            rotate(service.process.log)
        now = time.monotonic()
        if service.process.alive and not (service.ended or any(not one.alive for one in service.process.helpers)):
            continue
        if not service.ended:
            last = next((one for one in (*service.process.helpers, service.process) if not one.alive), service.process)
            service.starts = 1 if now - service.since > STEADY else service.starts + 1
            if service.starts > MOST_STARTS:
                raise FederationError(f"{last.name} ended {MOST_STARTS} times in a row; {last.last_words()}")
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (service.starts - 1))
            service.ended, service.due = True, now + pause
            tell(f"{last.name} ended ({last.last_words()}); it is restarted in {pause:.0f} s")
            stop([service.process])  # its helpers too
        if now >= service.due:
            try:
                service.process, service.since, service.ended = service.start(), time.monotonic(), False
            except (FedGBOError, OSError) as error:
                service.starts += 1
                if service.starts > MOST_STARTS:
                    raise
                service.due = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (service.starts - 1))
                tell(f"{error}; trying again")
            else:
                tell(f"{service.process.name} runs again")


def end_with(parent: int) -> Callable[[], None] | None:
    """Return a function for a new child that makes Linux send it SIGTERM when `parent` ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return ask


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put SIGINT and SIGTERM off until the end; ignore them if the stop is itself the answer to one."""
    answering = sys.exc_info()[0] is not None
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda got, _: noted.append(got)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted and not answering:
        signal.raise_signal(noted[0])
