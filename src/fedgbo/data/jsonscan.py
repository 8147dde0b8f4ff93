"""Walk through a JSON file of any size, with about one value of it in memory.

Finding where a value ends is left to `bytes.find` and `bytes.count`, and its content to `json.loads`, so hundreds of
megabytes of numbers go by at the speed of C.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from fedgbo.core.errors import DataError

CHUNK = 1 << 20
SPACE = b" \t\r\n"
STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
AFTER_WORD = re.compile(rb"[\s,\]}:]")
CLOSING = {b"{": b"}", b"[": b"]"}


class JsonScanner:
    """Reads a stream from front to back; `where` names it in errors."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream = stream
        self._where = where
        self._buffer = bytearray(stream.read(CHUNK))
        self._base = 0  # the buffer's first byte in the file
        self._position = 3 if self._buffer.startswith(b"\xef\xbb\xbf") else 0  # a byte order mark
        if not self.peek():
            raise DataError(f"{where} is empty; get it again")

    def peek(self) -> bytes:
        """Return the next byte that is not white space, without taking it; nothing at the end of the file."""
        while True:
            while self._position < len(self._buffer):
                if self._buffer[self._position] not in SPACE:
                    return bytes(self._buffer[self._position : self._position + 1])
                self._position += 1
            self._forget()
            if not self._fill():
                return b""

    def take(self, expected: bytes, inside: str) -> None:
        """Take one byte, which must be `expected`."""
        found = self.peek()
        if found != expected:
            self._fail(f"expected {expected.decode()!r}", inside)
        self._position += 1

    def members(self, inside: str) -> Iterator[str]:
        """Give the keys of the object that comes next; take each one's value before asking for the next key."""
        self.take(b"{", inside)
        if self.peek() == b"}":
            self._position += 1
            return
        while True:
            if self.peek() != b'"':
                self._fail("expected a name in quotes", inside)
            key = self.value(inside)
            self.take(b":", inside)
            yield key
            if self.peek() == b"}":
                self._position += 1
                return
            self.take(b",", inside)

    def value(self, inside: str) -> Any:
        """Take the next value, whole."""
        first = self.peek()
        if not first:
            self._fail("expected a value", inside)
        self._forget()
        if first in CLOSING:
            end = self._end_of_block(first, CLOSING[first], inside)
        elif first == b'"':
            end = self._end_of_string(inside)
        else:
            end = self._end_of_word()
        try:
            value = json.loads(self._buffer[self._position : end])
        except (ValueError, RecursionError) as error:
            place = self._base + self._position + getattr(error, "pos", getattr(error, "start", 0))
            raise DataError(f"{self._where}: {inside}, about byte {place}: no valid JSON ({error})") from error
        self._position = end
        return value

    def finish(self) -> None:
        """Raise unless nothing is left."""
        if self.peek():
            self._fail("expected nothing more", "after the last value")

    def _end_of_block(self, opening: bytes, closing: bytes, inside: str) -> int:
        """Find the end of the object or list that starts here, whatever its strings contain."""
        seen = search = self._position + 1
        depth, in_string = 1, False
        while True:
            at = self._buffer.find(closing, search)
            if at < 0:
                search = len(self._buffer)
                self._more(inside)
                continue
            segment = self._buffer[seen:at]
            if opening in segment:
                outside = STRING.sub(b"", b'"' + segment if in_string else segment)
                depth += outside.count(opening)
            in_string ^= _quotes(segment) % 2 == 1
            seen, search = at, at + 1
            if not in_string:
                depth -= 1
                if depth == 0:
                    return search

    def _end_of_string(self, inside: str) -> int:
        search = self._position + 1
        while True:
            at = self._buffer.find(b'"', search)
            if at < 0:
                search = len(self._buffer)
                self._more(inside)
            elif _quotes(self._buffer[self._position + 1 : at + 1]) == 1:
                return at + 1
            else:
                search = at + 1

    def _end_of_word(self) -> int:
        """Find the end of a number, true, false or null."""
        while True:
            found = AFTER_WORD.search(self._buffer, self._position)
            if found or not self._fill():
                return found.start() if found else len(self._buffer)

    def _fill(self) -> bool:
        chunk = self._stream.read(CHUNK)
        self._buffer += chunk
        return bool(chunk)

    def _more(self, inside: str) -> None:
        if not self._fill():
            end = self._base + len(self._buffer)
            raise DataError(f"{self._where} ends after byte {end}, {inside}: it was cut short; get it again")

    def _forget(self) -> None:
        """Drop what has been taken, now and then: each time would cost more than it saves."""
        if self._position >= CHUNK or self._position == len(self._buffer):
            del self._buffer[: self._position]
            self._base += self._position
            self._position = 0

    def _fail(self, wanted: str, inside: str) -> NoReturn:
        found = self.peek()
        place = self._base + self._position
        if not found:
            raise DataError(f"{self._where} ends after byte {place}, {inside}: it was cut short; get it again")
        raise DataError(f"{self._where}: {inside}, byte {place}: {wanted}, found {found!r}; this is not LEAF's JSON")


def _quotes(segment: bytearray) -> int:
    """Count the quotes that are not escaped."""
    if b"\\" in segment:
        segment = segment.replace(b"\\\\", b"").replace(b'\\"', b"")
    return segment.count(b'"')
