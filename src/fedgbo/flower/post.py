"""Messages to nodes and their replies. Each reply is told by the message that it answers, and counts once or never."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedgbo.core.errors import FederationError
from fedgbo.flower.order import ACTION
from fedgbo.flower.wire import wire_bytes

MEANINGS = {
    0: "the client failed",
    1: "the client app cannot be loaded",
    2: "the client app raised an error",
    3: "no reply in time",
    4: "the reply is gone",
    5: "the node is gone",
    8: "the client app crashed",
}  # of Flower's error codes
GONE = 5
PULL = 1.0  # seconds that all others wait for one reply's pieces; then it is put together beside them


@dataclass(frozen=True)
class Letter:
    """A message that was sent, and to whom."""

    id: str
    node: int
    bytes: int


@dataclass(frozen=True)
class Reply:
    """What came back: content, or a sentence about what went wrong."""

    content: RecordDict | None
    problem: str = ""
    bytes: int = 0
    gone: bool = False  # whether Flower says that the node is


class Post:
    """Sends all messages at once, so that what they share is sent once, and fetches replies one at a time.

    A reply that cannot be read takes none of the others with it then. Nor does one that a node has announced and does
    not deliver: Flower waits for its pieces, for minutes or hours.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pulls: dict[str, _Pull] = {}  # that take long

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        with _connected():
            return set(self._grid.get_node_ids())

    def send(
        self, kind: str, records: Mapping[int, Mapping[str, Any]], seconds: float, group: str = ""
    ) -> dict[int, Letter]:
        """Send each node its records, to be answered within so many seconds; return the letters that Flower took."""
        messages = [
            Message(RecordDict(dict(content)), node, f"{kind}.{ACTION}", ttl=seconds, group_id=group)
            for node, content in records.items()
        ]
        sizes = wire_bytes(messages)
        with _connected():
            taken = set(self._grid.push_messages(messages))
        letters = [
            Letter(message.metadata.message_id, message.metadata.dst_node_id, size)
            for message, size in zip(messages, sizes, strict=True)
        ]
        return {letter.node: letter for letter in letters if letter.id in taken}

    def fetch(self, letters: Iterable[Letter]) -> Iterator[tuple[Letter, Reply]]:
        """Yield the replies that have come to some letters."""
        for letter in list(letters):
            reply = self._fetch(letter)
            if reply is not None:
                yield letter, reply

    def drop(self, letters: Iterable[Letter]) -> None:
        """Forget letters whose replies nobody wants any more."""
        for letter in letters:
            self._pulls.pop(letter.id, None)

    def _fetch(self, letter: Letter) -> Reply | None:
        pull = self._pulls.pop(letter.id, None)
        if pull is None:
            pull = _Pull(self._grid, letter.id)
            pull.join(PULL)
        if pull.is_alive():
            self._pulls[letter.id] = pull
            return None
        try:
            with _connected():
                return _reply(pull.messages(), letter)
        except FederationError:
            raise
        except Exception as error:  # Flower puts the reply together from pieces that the node has made
            return Reply(None, f"the reply cannot be read: {type(error).__name__}: {str(error)[:200]}")


class _Pull(threading.Thread):
    """Asks Flower for the reply to one message, in a thread of its own."""

    def __init__(self, grid: Grid, message: str) -> None:
        super().__init__(name="fedgbo-pull", daemon=True)
        self._grid, self._message = grid, message
        self._found: list[Message] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Pull."""
        try:
            self._found = list(self._grid.pull_messages([self._message]))
        except BaseException as error:  # raised again by `messages`
            self._error = error

    def messages(self) -> list[Message]:
        """Return what came, or raise what Flower raised."""
        if self._error is not None:
            raise self._error
        return self._found


def _reply(messages: Iterable[Message], letter: Letter) -> Reply | None:
    """Return the first reply to a letter; another one to the same message is a duplicate."""
    first = next((message for message in messages if message.metadata.reply_to_message_id == letter.id), None)
    if first is None:
        return None
    if first.has_error():
        meaning = MEANINGS.get(first.error.code, f"Flower's error {first.error.code}")
        reason = f"{meaning}: {str(first.error.reason).strip()[-300:]}"
        return Reply(None, reason, gone=first.error.code == GONE)
    return Reply(first.content, bytes=sum(wire_bytes([first])))


def pause(seconds: float, until: float) -> None:
    """Sleep, but not beyond a time."""
    time.sleep(max(0.0, min(seconds, until - time.monotonic())))


@contextmanager
def _connected() -> Iterator[None]:
    """Say in our words that the SuperLink is gone."""
    try:
        yield
    except httpx.HTTPError as error:
        raise FederationError(
            f"the connection to the SuperLink broke ({type(error).__name__}: {error}); start it, then resume the run"
        ) from error
