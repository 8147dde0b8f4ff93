"""Who is left when a connection breaks. Processes meet in torch's key-value store, which outlives most of them."""

import time
from contextlib import suppress
from typing import Any

from fedgbo.engines.messages import ending

SECONDS = 2.0  # that the others have to answer; the store itself answers in less than a millisecond
POLL = 0.05


class RollCall:
    """One process's place in the list."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self.over = False  # whether this process has left, or has found the others gone
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout

    def leave(self, message: bytes) -> None:
        """Leave word why this process ends, for those who will miss it."""
        self.over = True
        with suppress(RuntimeError, KeyboardInterrupt):  # no store any more, or no time
            if self._store is not None:
                self._store.set(f"fedgbo/left/{self._rank}", message)

    def ask(self, cause: str) -> tuple[set[int], str]:
        """Return who answers, this process at least, and a sentence about those who do not."""
        self.over = True
        present, left = {self._rank}, dict[int, bytes]()
        with suppress(RuntimeError, KeyboardInterrupt):  # the store is gone too, or torchrun is tired of waiting
            if self._store is not None:
                self._collect(self._store, present, left)
        return present, self._sentence(present, left, cause)

    def _collect(self, store: Any, present: set[int], left: dict[int, bytes]) -> None:
        store.set(f"fedgbo/here/{self._rank}", b"1")
        end = time.monotonic() + SECONDS
        while len(present) + len(left) < self._size and time.monotonic() < end:
            for rank in set(range(self._size)) - present - left.keys():
                if store.check([f"fedgbo/left/{rank}"]):
                    left[rank] = store.get(f"fedgbo/left/{rank}")
                elif store.check([f"fedgbo/here/{rank}"]):
                    present.add(rank)
            time.sleep(POLL)

    def _sentence(self, present: set[int], left: dict[int, bytes], cause: str) -> str:
        if left:
            return "; ".join(f"rank {rank} {ending(message)}" for rank, message in sorted(left.items()))
        silent = sorted(set(range(self._size)) - present)
        who = "another rank" if not silent else f"rank {' and '.join(map(str, silent))}"
        if "imed out" in cause or "imeout" in cause:
            return (
                f"no answer from {who} within {self._timeout:g} s; "
                "if a round takes longer than that, set FEDGBO_TIMEOUT to more seconds"
            )
        return f"the connection to {who} broke: that process was killed, or its machine or network failed"
