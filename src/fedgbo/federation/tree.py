"""Which processes a process has started, and whether they are still there.

Flower's SuperLink starts its helpers in sessions of their own, so a process group does not hold them all. On Linux
/proc tells; elsewhere only a process itself is seen, and its helpers end when they notice that it is gone.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Mark:
    """A process: its number and when it started, since numbers are given out again."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether the process is still there and not merely waiting to be reaped."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZX"

    def signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    started: int


def marks_of(pids: Iterable[int]) -> list[Mark]:
    """Return the processes with these numbers and all that they have started, in turn."""
    table: dict[int, _Stat] = {}
    if _PROC.is_dir():
        numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        table = {number: stat for number in numbers if (stat := _stat(number)) is not None}
    children: dict[int, list[int]] = {}
    for number, stat in table.items():
        children.setdefault(stat.parent, []).append(number)
    found: dict[int, Mark] = {}
    waiting = list(pids)
    while waiting:
        number = waiting.pop()
        if number in table and number not in found:
            found[number] = Mark(number, table[number].started)
            waiting += children.get(number, [])
    return list(found.values())


def kill(marks: Iterable[Mark]) -> None:
    """End processes at once."""
    for mark in marks:
        mark.signal(signal.SIGKILL)


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return _Stat(fields[0], int(fields[1]), int(fields[19]))
