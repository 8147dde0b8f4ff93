"""Sends messages to nodes, fetches their replies, and records the events of a run.

A reply is matched by the id of the message that it answers, and counts at most once.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedgbo.core import FederationError
from fedgbo.flower.wire import ACTION, wire_bytes

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
PULL_SECONDS = 1.0  # to wait for one reply's objects; after that it is pulled in the background
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
        self._grid = grid
        self._pulls: dict[str, Future[list[Message]]] = {}  # unfinished, by message id

    def nodes(self) -> set[int]:
        """Return the connected nodes."""
        return set(_repeated(lambda: list(self._grid.get_node_ids())))

    def send(
        self, kind: str, contents: Mapping[int, RecordDict], seconds: float, group: str = ""
    ) -> dict[int, SentMessage]:
        """Send each node its content, to be answered within `seconds`; return the messages that Flower accepted."""
        messages = [
            Message(content, node, f"{kind}.{ACTION}", ttl=seconds, group_id=group)
            for node, content in contents.items()
        ]
        sizes = wire_bytes(messages)
        accepted = set(_repeated(lambda: list(self._grid.push_messages(messages))))
        ids, now = [message.metadata.message_id for message in messages], time.monotonic()
        return {
            node: SentMessage(key, node, size, now)
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
            return _first_reply(pull.result(), message)
        except FederationError:
            raise
        except Exception as error:  # Flower assembles the reply from objects that the node made
            return Reply(None, f"the reply cannot be read: {type(error).__name__}: {str(error)[:200]}")

    def _pull(self, message: SentMessage) -> Future[list[Message]]:
        """Pull the reply in a daemon thread, unlike an executor's: it must not keep the process from ending."""
        future: Future[list[Message]] = Future()

        def pull() -> None:
            try:
                future.set_result(_repeated(lambda: list(self._grid.pull_messages([message.id]))))
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
        text = str(first.error.reason).strip()[:300]  # may quote a node's data if the node runs Flower's own processes
        reason = text if text.startswith(APP_REASON) else f"{meaning}; the node's log says more"
        return Reply(None, reason, gone=first.error.code == GONE)
    return Reply(first.content, bytes=sum(wire_bytes([first])))


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
