"""What a node's log tells the person who sits there: rounds that it takes part in, and why the server refuses it."""

import re
from collections.abc import Iterator

from fedgbo.federation.process import Process, without_colours

_TELLING = (
    (re.compile(r"\[RUN \d+, ROUND (\d+)\]"), r"round \1"),
    (re.compile(r"(this node cannot take part: .*)"), r"\1"),
    (re.compile(r"(client \d+ in round \d+: .*)"), r"\1"),
    (re.compile(r"Connection attempt failed"), "the server does not answer; trying again"),
    (re.compile(r"Connection successful"), "the server answers again"),
)


class NodeWatch:
    """Reads a node's log as it grows."""

    def __init__(self, process: Process) -> None:
        self._log = process.log
        self._place = process.begin
        self._last = ""

    def new(self) -> Iterator[str]:
        """Yield what is worth telling since the last time, nothing twice in a row."""
        with self._log.open("rb") as file:
            file.seek(self._place)  # a node runs for weeks, and its log is long
            whole, newline, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + len(newline)
        for line in without_colours(whole.decode("utf-8", errors="replace")).splitlines():
            for pattern, say in _TELLING:
                if (found := pattern.search(line)) is not None and (told := found.expand(say)) != self._last:
                    self._last = told
                    yield told
