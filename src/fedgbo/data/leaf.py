"""LEAF's JSON: one object a file, with users, num_samples and user_data; train and test in separate files.

Files may be larger than memory: `JsonScanner` reads them with about one user in memory. `num_samples` is ignored,
because in public files of split data it also counts samples that the split left out.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from fedgbo.core import DataError
from fedgbo.data.archives import SourceFile, source_files

ROLE = re.compile(r"(?:^|[/_.-])(train|test)(?=[/_.-])")
CHUNK = 1 << 20
LONGEST = 1 << 28  # bytes of one value, such as a user's samples
LONGEST_WORD = 1 << 16  # bytes of a number
NOT_SPACE = re.compile(rb"[^ \t\r\n]")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
AFTER_WORD = re.compile(rb"[\s,\]}:]")
CLOSING = {b"{": b"}", b"[": b"]"}


class LeafUser(NamedTuple):
    """One user's samples in one file, possibly none; `where` names both for messages."""

    name: str
    x: list[Any]
    y: list[Any]
    where: str


def is_leaf(source: SourceFile) -> bool:
    """Return whether a file's name is that of LEAF's train or test JSON."""
    return source.name.endswith(".json") and ROLE.search(source.name) is not None


def leaf_files(path: Path) -> tuple[list[SourceFile], list[SourceFile]]:
    """Find the train and the test files by their folders or their names (all_data_..._train_9.json).

    For a single file, the other half is looked for beside it.
    """
    halves = [path]
    if path.is_file() and (found := list(ROLE.finditer(path.name))):
        start, end = found[-1].span(1)
        twin = path.with_name(path.name[:start] + {"train": "test", "test": "train"}[found[-1][1]] + path.name[end:])
        halves += [twin] if twin.is_file() else []
    files: dict[str, list[SourceFile]] = {"train": [], "test": []}
    for source in (source for half in halves for source in source_files(half)):
        if is_leaf(source):
            files[ROLE.findall(source.name)[-1]].append(source)
    for role, found_files in files.items():
        if not found_files:
            names = f"in a folder {role}/, or with _{role}_ in their names"
            raise DataError(f"{path} has no LEAF JSON files for {role} ({names}); give the folder that holds both")
    return files["train"], files["test"]


def users(sources: Iterable[SourceFile]) -> Iterator[LeafUser]:
    """Read the users of the files in order, with one user in memory."""
    seen: dict[str, str] = {}
    for source in sources:
        for user in _users(source):
            if user.name in seen:
                raise DataError(f"{user.where} appears a second time, first in {seen[user.name]}; remove one")
            seen[user.name] = source.where
            yield user
    if not seen:
        raise DataError("the LEAF JSON files have no users; get them again")


def _users(source: SourceFile) -> Iterator[LeafUser]:
    listed, found, given = None, False, set()
    with source.open() as stream:
        scanner = JsonScanner(stream, source.where)
        for key in scanner.members("at the top"):
            if key != "user_data":
                value = scanner.value(f"in {key!r}")
                listed = value if key == "users" else listed
                continue
            found = True
            for name in scanner.members("in 'user_data'"):
                yield _user(name, scanner.value(f"in user {name!r}"), f"user {name!r} in {source.where}")
                given.add(name)
        scanner.finish()
    if not found:
        raise DataError(f"{source.where} has no 'user_data'; LEAF's JSON has users, num_samples and user_data")
    for name in listed if isinstance(listed, list) else []:
        if not isinstance(name, str):
            raise DataError(f"{source.where}: 'users' has {name!r}, which is not a name; this is not LEAF's JSON")
        if name not in given:
            given.add(name)
            yield LeafUser(name, [], [], f"user {name!r} in {source.where}")


def _user(name: str, data: Any, where: str) -> LeafUser:
    if not isinstance(data, dict) or not isinstance(data.get("x"), list) or not isinstance(data.get("y"), list):
        raise DataError(f'{where} must be {{"x": [...], "y": [...]}}; this is not LEAF\'s JSON')
    x, y = data["x"], data["y"]
    if len(x) != len(y):
        raise DataError(f"{where} has {len(x)} x but {len(y)} y; each sample needs one of each")
    return LeafUser(name, x, y, where)


class JsonScanner:
    """Reads a JSON stream of any size, with about one value in memory; `where` is for messages.

    `bytes.find` and `bytes.count` find the end of a value, and `json.loads` parses it: both run at the speed of C.
    """

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self._stream = stream
        self._where = where
        self._buffer = bytearray(stream.read(CHUNK))
        self._base = 0  # position of the buffer's first byte in the file
        self._position = 3 if self._buffer.startswith(b"\xef\xbb\xbf") else 0  # a byte order mark
        if not self.peek():
            raise DataError(f"{where} is empty; get it again")

    def peek(self) -> bytes:
        """Return the next byte that is not white space, without taking it; b"" at the end of the file."""
        while True:
            if found := NOT_SPACE.search(self._buffer, self._position):
                self._position = found.start()
                return found[0]
            self._position = len(self._buffer)
            self._forget()
            if not self._fill():
                return b""

    def take(self, expected: bytes, inside: str) -> None:
        if self.peek() != expected:
            self._fail(f"expected {expected.decode()!r}", inside)
        self._position += 1

    def members(self, inside: str) -> Iterator[str]:
        """Yield the keys of the object that comes next; take each key's value before asking for the next key."""
        self.take(b"{", inside)
        first = True
        while self.peek() != b"}":
            if not first:
                self.take(b",", inside)
            if self.peek() != b'"':
                self._fail("expected a name in quotes", inside)
            key = self.value(inside)
            self.take(b":", inside)
            yield key
            first = False
        self._position += 1

    def value(self, inside: str) -> Any:
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
        if self.peek():
            self._fail("expected nothing more", "after the last value")

    def _end_of_block(self, opening: bytes, closing: bytes, inside: str) -> int:
        """Find the end of the object or list that starts here, whatever its strings contain."""
        end, depth, in_string = self._position + 1, 1, False
        while depth:
            at = self._find(closing, end, inside)
            segment = self._buffer[end:at]
            if opening in segment:
                outside = STRING.sub(b"", b'"' + segment if in_string else segment)
                depth += outside.count(opening)
            in_string ^= _quotes(segment) % 2 == 1
            end = at + 1
            depth -= not in_string
        return end

    def _end_of_string(self, inside: str) -> int:
        end = self._find(b'"', self._position + 1, inside) + 1
        while _quotes(self._buffer[self._position + 1 : end]) != 1:
            end = self._find(b'"', end, inside) + 1
        return end

    def _end_of_word(self) -> int:
        while True:
            found = AFTER_WORD.search(self._buffer, self._position)
            if not found and len(self._buffer) - self._position > LONGEST_WORD:
                self._fail("expected a number", "in a word without end")
            if found or not self._fill():
                return found.start() if found else len(self._buffer)

    def _fill(self) -> bool:
        chunk = self._stream.read(CHUNK)
        self._buffer += chunk
        return bool(chunk)

    def _find(self, byte: bytes, start: int, inside: str) -> int:
        """Return the next position of the byte in the buffer; read more of the stream as needed."""
        while (at := self._buffer.find(byte, start)) < 0:
            start = len(self._buffer)
            if start - self._position > LONGEST:
                raise DataError(f"{self._where}: {inside}: one value has more than {LONGEST:,} bytes; refused")
            if not self._fill():
                self._position = start
                self._fail("", inside)
        return at

    def _forget(self) -> None:
        """Drop the bytes already taken, but only after a whole chunk: to do it each time would cost too much."""
        if self._position >= CHUNK or self._position == len(self._buffer):
            del self._buffer[: self._position]
            self._base += self._position
            self._position = 0

    def _fail(self, wanted: str, inside: str) -> NoReturn:
        found, place = self.peek(), self._base + self._position
        if not found:
            raise DataError(f"{self._where} ends after byte {place}, {inside}: it was cut short; get it again")
        raise DataError(f"{self._where}: {inside}, byte {place}: {wanted}, found {found!r}; this is not LEAF's JSON")


def _quotes(segment: bytearray) -> int:
    if b"\\" in segment:
        segment = segment.replace(b"\\\\", b"").replace(b'\\"', b"")
    return segment.count(b'"')
