"""Messages to nodes and their replies. Each reply is told by the message that it answers, and counts once or never."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedgbo.flower.order import ACTION
from fedgbo.flower.wire import wire_bytes


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


class Post:
    """Sends and fetches one message at a time, so that one that cannot be read takes none of the others with it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def send(self, node: int, kind: str, records: Mapping[str, Any], seconds: float, group: str = "") -> Letter | None:
        """Send a message that is to be answered within so many seconds; None if Flower did not take it."""
        message = Message(RecordDict(dict(records)), node, f"{kind}.{ACTION}", ttl=seconds, group_id=group)
        size = wire_bytes(message)
        ids = list(self.grid.push_messages([message]))
        return Letter(ids[0], node, size) if ids and ids[0] else None

    def fetch(self, letters: Mapping[str, Letter]) -> Iterator[tuple[Letter, Reply]]:
        """Yield the replies that have come to some letters."""
        for letter in list(letters.values()):
            reply = self._fetch(letter)
            if reply is not None:
                yield letter, reply

    def _fetch(self, letter: Letter) -> Reply | None:
        try:
            messages = list(self.grid.pull_messages([letter.id]))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, UnicodeError) as error:
            return Reply(None, f"the reply cannot be read: {type(error).__name__}: {str(error)[:200]}")
        answers = [message for message in messages if message.metadata.reply_to_message_id == letter.id]
        if not answers:
            return None
        first = answers[0]  # another one to the same message is a duplicate
        if first.has_error():
            return Reply(None, f"{_meaning(first.error.code)}: {str(first.error.reason).strip()[-300:]}")
        return Reply(first.content, bytes=wire_bytes(first))


MEANINGS = {
    0: "the client failed",
    1: "the client app cannot be loaded",
    2: "the client app raised an error",
    3: "no reply in time",
    4: "the reply is gone",
    5: "the node is gone",
    8: "the client app crashed",
}


def _meaning(code: int) -> str:
    return MEANINGS.get(code, f"Flower's error {code}")


def pause(seconds: float, until: float) -> None:
    """Sleep, but not beyond a time."""
    time.sleep(max(0.0, min(seconds, until - time.monotonic())))
