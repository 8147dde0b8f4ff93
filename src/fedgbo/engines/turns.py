"""Who computes when: a few cores, many clients, and none of the cores idle at the end.

Five clients on two cores would leave one core idle while the fifth is trained. So one of them begins first, waits
halfway while the other four are trained, and goes on at the end (McNaughton's rule for machines that may put work
aside). What a client computes does not depend on it. Fewer clients than cores do leave some idle.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count


class Turn(IntEnum):
    """Whose turn it is first."""

    BEFORE = 0  # clients that will wait halfway
    WHOLE = 1
    AFTER = 2  # those, again


class Cores:
    """Lets so many threads compute at a time, the others in turn: by their Turn, then as they come."""

    def __init__(self, cores: int) -> None:
        self._free = cores
        self._waiting: list[tuple[Turn, int]] = []
        self._numbers = count()
        self._changed = threading.Condition()

    def take(self, turn: Turn) -> None:
        """Wait for a core."""
        with self._changed:
            me = (turn, next(self._numbers))
            heappush(self._waiting, me)
            self._changed.wait_for(lambda: self._free > 0 and self._waiting[0] == me)
            heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()  # another core may be free for the next one

    def give(self) -> None:
        """Give the core back."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    @contextmanager
    def one(self, turn: Turn) -> Iterator[None]:
        """Compute on one core."""
        self.take(turn)
        try:
            yield
        finally:
            self.give()


def pauses(clients: int, cores: int) -> list[float]:
    """Return after which part of its steps each of the last few clients is to wait for the others.

    Laid end to end and cut into equal parts, one for each core, the clients fill the cores evenly. A client that a cut
    goes through has its end on one core and its beginning on the next one, where it is the first.

    >>> pauses(5, cores=2), pauses(4, cores=2), pauses(5, cores=4)
    ([0.5], [], [0.25, 0.5, 0.75])
    """
    if clients <= cores:
        return []
    before_cut = [clients * core % cores / cores for core in range(1, cores)]
    return sorted(1 - part for part in before_cut if part)
