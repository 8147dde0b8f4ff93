"""Who is left when a connection breaks. Processes meet in torch's key-value store, which outlives most of them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedgbo.engines.messages import ending

SECONDS = 2.0  # that the others have to answer; the store itself answers in less than a millisecond
POLL = 0.02


class RollCall:
    """One process's place in the list. Without a store nobody can be asked."""

    def __init__(self, store: Any | None, rank: int, size: int, timeout: float) -> None:
        self.over = False  # whether this process has left, or has found others gone
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout

    def leave(self, message: bytes) -> None:
        """Leave word why this process ends, for those who will miss it."""
        self.over = True
        with suppress(RuntimeError, KeyboardInterrupt), _quiet():  # no store any more, or no time
            if self._store is not None:
                self._store.set(f"fedgbo/left/{self._rank}", message)

    def ask(self, cause: str) -> tuple[int, str]:
        """Return the lowest rank that answers or has left word, and a sentence about those who are missing."""
        self.over = True
        here, left = {self._rank}, dict[int, bytes]()
        missing = self._collect(here, left, SECONDS)
        return min(here | left.keys()), self._sentence(missing, left, cause)

    def linger(self) -> None:
        """Stay until the others have read the word that was left, if it is this process that keeps the store."""
        if self._rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            self._collect({0}, {}, SECONDS / 4)

    def _collect(self, here: set[int], left: dict[int, bytes], seconds: float) -> list[int]:
        """Add the ranks that answer to `here`, and what others have left to `left`; return the ranks that are missing.

        The store lies on the machine of rank 0, so that a store that is gone means that rank 0 is.
        """
        if self._store is None:
            return []
        try:
            with _quiet(), suppress(KeyboardInterrupt):  # torchrun ends all
                self._ask(self._store, here, left, seconds)
        except RuntimeError:
            return [0]
        return sorted(set(range(self._size)) - here)

    def _ask(self, store: Any, here: set[int], left: dict[int, bytes], seconds: float) -> None:
        store.set(f"fedgbo/here/{self._rank}", b"1")
        end = time.monotonic() + seconds
        while len(here) + len(left) < self._size and time.monotonic() < end:
            for rank in set(range(self._size)) - here - left.keys():
                if store.check([f"fedgbo/left/{rank}"]):
                    left[rank] = store.get(f"fedgbo/left/{rank}")
                elif store.check([f"fedgbo/here/{rank}"]):
                    here.add(rank)
            time.sleep(POLL)

    def _sentence(self, missing: list[int], left: dict[int, bytes], cause: str) -> str:
        if left:
            return "; ".join(f"rank {rank} {ending(message)}" for rank, message in sorted(left.items()))
        who = f"rank {' or '.join(map(str, missing))}" if missing else "another rank"
        if "timed out" in cause.lower() or "timeout" in cause.lower():
            return (
                f"no answer from {who} within {self._timeout:g} s; "
                "if a round takes longer than that, set FEDGBO_TIMEOUT to more seconds"
            )
        return f"the connection to {who} broke: the process was killed, or its machine or network failed"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own C++ code from printing stacks of addresses when it finds the store gone."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
