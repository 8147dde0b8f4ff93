"""Sends messages to nodes, fetches their replies, and records the events of a run.

A reply is matched by the id of the message that it answers, and counts at most once.
"""

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, pull_objects
from flwr.superlink.grid import http_grid

from fedgbo.core import DataError, FederationError
from fedgbo.flower.wire import ACTION, short, wire_bytes

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
APP_REASON = "app "  # begins the only texts that a node's errors may bring: apps that its operators did not allow
PRIVATE_FILE = 0o600
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)  # seconds before a failed call to the SuperLink is repeated
MOST_PAUSE = 5.0  # seconds between looks for replies
MOST_ENTRIES = 20_000  # of a reply's records; a node sends at most 4,096 objects
PULL_SECONDS = 1.0  # to wait for one reply's objects; after that it is pulled in the background
MOST_PULLS = 4  # of a node's replies at the same time; an honest one has an order, and questions of two kinds
LOG = logging.getLogger("fedgbo.flower")
WARNINGS = {"refused", "nodes", "duplicate", "rejected", "dropped", "lost", "late", "abandoned", "stopped"}


class Events:
    """Writes events to the log and, once `folder` is set, to events.jsonl there, one JSON object a line.

    `folder` is set when the run folder is open and locked by this run.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None

    def __call__(self, kind: str, **more: Any) -> None:
        LOG.log(logging.WARNING if kind in WARNINGS else logging.INFO, "%s %s", kind, json.dumps(more))
        if self.folder is not None:
            line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **more})
            file = self.folder / "events.jsonl"
            try:
                file.touch(mode=PRIVATE_FILE)
                file.chmod(PRIVATE_FILE)  # of a run that an older version began
                with file.open("a", encoding="utf-8") as events:
                    events.write(line + "\n")
            except OSError as error:  # a full disk stops the run at its next checkpoint
                LOG.error("%s cannot be written: %s", file, error.strerror)


@dataclass(frozen=True)
class SentMessage:
    """A message that Flower accepted for a node."""

    id: str
    node: int
    bytes: int
    at: float  # when, by the monotonic clock
    until: float  # when its reply is no longer awaited
    room: int = 0  # bytes that the arrays of its reply may take


@dataclass(frozen=True)
class Reply:
    """A reply: its content, or a description of the problem."""

    content: RecordDict | None
    problem: str = ""
    bytes: int = 0
    gone: bool = False  # whether Flower reports that the node is gone


class Messenger:
    """Sends all messages of a round together, so that shared objects are sent once, and fetches replies one by one.

    One by one, an unreadable reply does not affect the others. Neither does a reply that a node has announced and does
    not deliver, for which Flower waits minutes or hours.
    """

    def __init__(self, grid: Grid) -> None:
        _bound_arrays()
        http_grid.pull_objects = _pull_in_time  # type: ignore[assignment, attr-defined]
        self._grid = grid
        self._pulls: dict[str, Future[Reply | None]] = {}  # unfinished, by message id
        self._open: list[tuple[int, Future[Reply | None]]] = []  # the same and dropped ones, with their nodes

    def nodes(self) -> set[int]:
        """Return the connected nodes."""
        return set(_repeated(lambda: list(self._grid.get_node_ids())))

    def send(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        seconds: float,
        group: str = "",
        rooms: Mapping[int, int] | None = None,
    ) -> dict[int, SentMessage]:
        """Send each node its content, to be answered within `seconds`; return the messages that Flower accepted.

        `rooms` are the bytes that the arrays of each node's reply may take; without it, replies have no arrays.
        """
        messages = [
            Message(content, node, f"{kind}.{ACTION}", ttl=seconds, group_id=group)
            for node, content in contents.items()
        ]
        sizes = wire_bytes(messages)
        accepted = set(_repeated(lambda: list(self._grid.push_messages(messages))))
        ids, now = [message.metadata.message_id for message in messages], time.monotonic()
        return {
            node: SentMessage(key, node, size, now, now + seconds, (rooms or {}).get(node, 0))
            for node, key, size in zip(contents, ids, sizes, strict=True)
            if key in accepted
        }

    def fetch(self, messages: Iterable[SentMessage]) -> Iterator[tuple[SentMessage, Reply]]:
        """Yield the replies that have arrived to these messages."""
        for message in list(messages):
            if (reply := self._fetch(message)) is not None:
                yield message, reply

    def pulling(self, message: SentMessage) -> bool:
        """Whether a reply to a message is being pulled."""
        return message.id in self._pulls

    def stalling(self) -> set[int]:
        """Return the nodes that announced several replies and have not delivered them: each reply occupies a thread.

        A node could connect again and again, and announce a reply to every question. It is refused until its pulls end.
        """
        self._open = [(node, pull) for node, pull in self._open if not pull.done()]
        return {node for node, count in Counter(node for node, _ in self._open).items() if count >= MOST_PULLS}

    def drop(self, messages: Iterable[SentMessage]) -> None:
        """Forget messages whose replies are no longer needed."""
        for message in messages:
            self._pulls.pop(message.id, None)

    def _fetch(self, message: SentMessage) -> Reply | None:
        pull = self._pulls.pop(message.id, None)
        if pull is None:
            pull = self._pull(message)
            wait([pull], PULL_SECONDS)
        if not pull.done():
            self._pulls[message.id] = pull
            return None
        try:
            return pull.result()
        except FederationError:
            raise
        except Exception as error:  # Flower assembles the reply from objects that the node made
            return Reply(None, f"the reply cannot be read: {type(error).__name__}: {short(error, 200)}")

    def _pull(self, message: SentMessage) -> Future[Reply | None]:
        """Pull the reply in a daemon thread, unlike an executor's: it must not keep the process from ending."""
        future: Future[Reply | None] = Future()
        self._open.append((message.node, future))

        def pull() -> None:
            ROOM.left, ROOM.until = message.room, message.until
            try:
                found = _repeated(lambda: list(self._grid.pull_messages([message.id])))
                future.set_result(_first_reply(found, message))
            except BaseException as error:  # raised again by `result`
                future.set_exception(error)

        threading.Thread(target=pull, name="fedgbo-pull", daemon=True).start()
        return future


def _first_reply(found: Iterable[Message], to: SentMessage) -> Reply | None:
    """Return the first reply to a message; any further one is a duplicate."""
    first = next((message for message in found if message.metadata.reply_to_message_id == to.id), None)
    if first is None:
        return None
    if first.has_error():
        meaning = MEANINGS.get(first.error.code, f"Flower's error {first.error.code}")
        text = short(first.error.reason, 300)  # may quote a node's data if the node runs Flower's own processes
        reason = text if text.startswith(APP_REASON) else f"{meaning}; the node's log says more"
        return Reply(None, reason, gone=first.error.code == GONE)
    if (entries := sum(map(len, first.content.values()))) > MOST_ENTRIES:
        return Reply(None, f"the reply has {entries} entries; at most {MOST_ENTRIES} are read")
    return Reply(first.content, bytes=sum(wire_bytes([first])))


class _Room(threading.local):
    """How many bytes the arrays that this thread assembles may still take, and until when it may wait for them."""

    left: float = math.inf
    until: float = math.inf


ROOM = _Room()
_ASSEMBLE = Array.inflate  # Flower's


def _bound_arrays() -> None:
    """Let Flower assemble a reply's arrays only while there is room for them.

    An array names its pieces, as often as the node likes: a small reply could fill the memory.
    """

    def inflate(kind: type[Array], content: bytes, children: dict[str, InflatableObject] | None = None) -> Array:
        pieces, ids = children or {}, get_object_children_ids_from_object_content(content)
        named = json.loads(get_object_body(content, kind))["arraychunk_ids"]
        ROOM.left -= sum(len(cast(ArrayChunk, pieces[ids[number]]).data) for number in named)
        if ROOM.left < 0:
            raise DataError("its arrays are larger than its clients' updates can be")
        return _ASSEMBLE(content, pieces)

    Array.inflate = classmethod(inflate)  # type: ignore[assignment, method-assign]


def _pull_in_time(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """Pull a reply's objects while the reply is awaited. Flower would wait for 83 minutes, in three threads."""
    return pull_objects(object_ids, pull_object_fn, max_time=max(0.0, ROOM.until - time.monotonic()))


def pause(poll: float, awaited: int, until: float) -> None:
    """Sleep before the next look for replies, but not beyond `until` (monotonic time).

    Each awaited reply is asked for by itself, so the pause grows with their number: many nodes would otherwise keep the
    SuperLink busy with questions.
    """
    time.sleep(max(0.0, min(poll * max(1, awaited), MOST_PAUSE, until - time.monotonic())))


def _repeated(call: Callable[[], list[Any]]) -> list[Any]:
    """Call the SuperLink; repeat the call after an internal error or a broken connection, a few times."""
    for pause_seconds in (*PAUSES, None):
        try:
            return call()
        except (httpx.HTTPError, ObjectPushError) as error:  # the latter if it was restarted during a push
            refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
            if pause_seconds is None or refused:
                raise FederationError(
                    f"the connection to the SuperLink broke ({type(error).__name__}: {error}); start it, then resume "
                    "the run"
                ) from error
            LOG.warning("the SuperLink failed (%s); trying again in %g s", type(error).__name__, pause_seconds)
            time.sleep(pause_seconds)
    raise AssertionError("unreachable")
