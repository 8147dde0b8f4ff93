"""Several files read as one: large public files are often handed round in parts."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast


def joined(parts: Sequence[Path]) -> BinaryIO:
    """Open the parts, in their order, as one seekable file."""
    return cast(BinaryIO, io.BufferedReader(_Joined(parts), buffer_size=1 << 16))


class _Joined(io.RawIOBase):
    def __init__(self, parts: Sequence[Path]) -> None:
        self._parts = parts
        sizes = [part.stat().st_size for part in parts]
        self._ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        self._position = 0
        self._open: tuple[int, BinaryIO] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        k = next((k for k, end in enumerate(self._ends) if self._position < end), None)
        if k is None:
            return 0
        start = self._ends[k - 1] if k else 0
        if self._open is None or self._open[0] != k:
            self._shut()
            self._open = (k, self._parts[k].open("rb"))
        file = self._open[1]
        file.seek(self._position - start)
        data = file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._shut()
        super().close()

    def _shut(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
