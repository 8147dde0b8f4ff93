"""What those who call the proxy may do: connections, the size of requests, and the contents of a node's calls."""

import asyncio
import re
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 60.0  # after which a connection is closed on which no request begins, or none is completed
HEARTBEAT_SECONDS = 300.0  # at most between two heartbeats of a node; Flower's have 30
LONGEST = 200  # of texts in a reply, in characters
LATEST = 1e10  # of times in seconds since 1970
BUFFERED = 2**16  # bytes of an answer that wait for a slow reader
MESSAGES = 100  # that a node was sent lately, of which the proxy knows the objects
PULLED = 20_000  # objects that a node has pulled lately
CALLS: Mapping[str, Any] = {  # that a node may make, with their requests
    "activate-node": ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    "send-node-heartbeat": SendNodeHeartbeatRequest,
    "pull-messages": PullMessagesRequest,
    "push-messages": PushMessagesRequest,
    "get-run": GetRunRequest,
    "get-fab": GetFabRequest,
    "push-object": PushObjectRequest,
    "pull-object": PullObjectRequest,
    "confirm-message-received": ConfirmMessageReceivedRequest,
}
_ID = re.compile("[0-9a-f]{64}")  # a SHA-256
_SESSION = re.compile("[0-9a-f-]{36}")  # a UUID


@dataclass(frozen=True)
class Limits:
    """What one node may send."""

    request_bytes: int = 8 * 2**20  # Flower splits arrays into pieces of 5 MiB
    together: int = 16  # requests in memory at the same time; Flower's nodes send three
    message_bytes: int = 2**20  # a reply's message, which names its objects in 80 bytes each
    call_bytes: int = 4096  # any other request but an object; Flower spends much time on lists that it does not use
    objects: int = 4096  # records, arrays and pieces of arrays in a reply
    reply_bytes: int = 4 * 2**30  # all objects of a reply to an order
    answer_bytes: int = 4 * 2**20  # all objects of a reply to a question
    calls: float = 200.0  # a second
    burst: float = 400.0  # calls at once
    objects_per_call: float = 4.0  # announced objects that cost the SuperLink as much as a call


class Refused(Exception):  # noqa: N818 - an answer, not an error of the server
    """A call that is not passed on: the HTTP status, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Inbox:
    """The messages that a node was sent lately, and the objects that it has pulled lately."""

    def __init__(self) -> None:
        self._messages: dict[str, set[str]] = {}  # objects of each message
        self._pulled: dict[str, None] = {}  # in the order in which they were pulled
        self._confirmed: set[str] = set()  # messages
        self._questions: set[str] = set()  # messages

    def add(self, message: ObjectTree, is_question: bool) -> None:
        """Note that the node was sent a message with these objects: an order to train, or a question."""
        if is_question:
            self._questions.add(message.object_id)
        self._messages[message.object_id] = {tree.object_id for tree in _trees(message)}
        while len(self._messages) > MESSAGES:
            oldest = next(iter(self._messages))
            del self._messages[oldest]
            self._confirmed.discard(oldest)
            self._questions.discard(oldest)

    def pulled(self, one: str) -> None:
        """Note that the node has pulled an object. It keeps the object, also for later messages that have it."""
        self._pulled.pop(one, None)
        self._pulled[one] = None
        while len(self._pulled) > PULLED:
            del self._pulled[next(iter(self._pulled))]

    def is_complete(self, message: str) -> bool:
        """Return whether the node was sent this message and has pulled all of its objects."""
        return message in self._messages and self._messages[message] <= self._pulled.keys()

    def confirmed(self, message: str) -> None:
        """Note that the SuperLink knows that the node has the message."""
        self._confirmed.add(message)

    def has_confirmed(self, message: str) -> bool:
        """Return whether the SuperLink knows that the node has the message."""
        return message in self._confirmed

    def is_question(self, message: str) -> bool:
        """Return whether this is a question that the node was sent."""
        return message in self._questions

    def __contains__(self, message: str) -> bool:
        return message in self._messages


@dataclass(eq=False)
class Account:
    """What a node has used of its limits."""

    credit: float
    at: float  # when the credit was computed
    places: asyncio.Semaphore  # for requests in memory
    reply_limits: Limits  # for its last reply
    reply_bytes: int = 0  # since that reply began
    replies: deque[str] = field(default_factory=lambda: deque(maxlen=1000))  # messages that it answered lately
    seen: float = 0.0  # time of its last call
    worked: float = field(default_factory=time.monotonic)  # when it was known to be connected
    inbox: Inbox = field(default_factory=Inbox)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin_reply(self, message: str, limits: Limits) -> None:
        """Count the bytes of a reply from here if it is the first one to its message; an answer must be smaller."""
        if message not in self.replies:
            self.replies.append(message)
            most = limits.answer_bytes if self.inbox.is_question(message) else limits.reply_bytes
            self.reply_bytes, self.reply_limits = 0, replace(limits, reply_bytes=most)


def read_request(call: str, body: bytes, limits: Limits) -> Any:
    """Return a request as Flower's message; raise Refused if it is none, or too large, or its ids are no ids.

    Flower writes the ids into its log, whatever they are.
    """
    most = {"push-object": limits.request_bytes, "push-messages": limits.message_bytes}.get(call, limits.call_bytes)
    if len(body) > most:  # before it is parsed, which could take long
        raise Refused(413, f"the request has more than the allowed {most} bytes")
    try:
        request = CALLS[call].FromString(body)
    except Exception as error:  # protobuf's errors differ between its implementations
        raise Refused(400, "the request is not a Flower message") from error
    for name in ("object_id", "message_object_id", "hash_str"):
        _check_id(getattr(request, name, "0" * 64))
    return request


def check_request(request: Any, node: int, reply_bytes: int, inbox: Inbox, limits: Limits) -> int:
    """Raise Refused if a request of the node with this id exceeds the limits, or has contents that harm others.

    `reply_bytes` is the size of all objects that belong to its reply so far. Return how many objects it announces.
    """
    if isinstance(request, PushObjectRequest):
        if reply_bytes > limits.reply_bytes:
            raise Refused(413, f"the reply has more than the allowed {limits.reply_bytes} bytes")
        if not _SESSION.fullmatch(request.session_id):  # Flower would take it for whoever waits for the object
            raise Refused(400, "it sent an object without the session of its reply")
    if isinstance(request, ActivateNodeRequest | SendNodeHeartbeatRequest):
        _check_seconds(request.heartbeat_interval, HEARTBEAT_SECONDS)
    return _check_reply(request, node, inbox, limits) if isinstance(request, PushMessagesRequest) else 0


def _check_reply(request: PushMessagesRequest, node: int, inbox: Inbox, limits: Limits) -> int:
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise Refused(400, f"it sent {len(request.messages_list)} replies in one call")
    about, whole = request.messages_list[0].metadata, request.message_object_trees[0]
    if request.messages_list[0].content.items:  # Flower's nodes send records as objects; these would cost it seconds
        raise Refused(400, "it sent a reply with records in the message itself")
    if about.src_node_id != node:
        raise Refused(403, "it sent a reply in the name of another node")
    if not about.reply_to_message_id:
        raise Refused(400, "it sent a message that is no reply, as only the server may")
    if not all(len(text) <= LONGEST and text.isprintable() for text in (about.message_type, about.group_id)):
        raise Refused(400, "the type or the group of its reply is not a short text")
    _check_id(about.reply_to_message_id)
    if about.message_id != whole.object_id:  # Flower would store any number of objects for one reply
        raise Refused(400, "it sent a reply with the objects of another message")
    if about.message_id in inbox:  # Flower would end the transfer of the server's message, and of those to others
        raise Refused(403, "it sent the server's message as its reply")
    if about.reply_to_message_id in inbox and not inbox.has_confirmed(about.reply_to_message_id):
        raise Refused(400, "it answered a message that it has not confirmed, which Flower therefore keeps")
    for seconds in (about.created_at, about.ttl, *request.clientapp_runtime_list):
        _check_seconds(seconds, LATEST)
    objects = 0
    for tree in _trees(whole):
        _check_id(tree.object_id)
        objects += 1
        if objects > limits.objects:
            raise Refused(413, f"the reply has more than the allowed {limits.objects} objects")
    return objects


def _trees(whole: ObjectTree) -> Iterator[ObjectTree]:
    """Yield an object and all of its parts, one by one: there may be very many."""
    waiting = [iter([whole])]
    while waiting:
        if (tree := next(waiting[-1], None)) is None:
            waiting.pop()
        else:
            yield tree
            waiting.append(iter(tree.children))


def _check_id(text: str) -> None:
    if not _ID.fullmatch(text):
        raise Refused(400, "it sent an id that is not a SHA-256")


def _check_seconds(seconds: float, most: float) -> None:
    """Refuse times such as NaN: Flower's database would keep them, and Flower would fail whenever it reads them."""
    if not 0 <= seconds <= most:
        raise Refused(400, f"it sent a time of {seconds} seconds")


class Connection(H11Protocol):
    """A connection that is closed if it is not used. h11 limits headers; uvicorn's other parser does not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.transport.set_write_buffer_limits(BUFFERED)
        self._last = self.cycle  # of requests and answers; None before the first
        self.loop.call_later(IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if self.cycle is self._last and not busy:
            self.transport.close()
        elif not self.transport.is_closing():
            self._last = self.cycle
            self.loop.call_later(IDLE_SECONDS, self._close_if_idle)


class Door(socket.socket):
    """A listening socket. Connections beyond a number, in all and by address, are closed before they cost anything."""

    def __init__(self, host: str, port: int, most: int, per_address: int, tell: Callable[[str], None]) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        super().__init__(*found[:3])
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(found[4])
        self.open: Counter[str] = Counter()  # by address
        self._most, self._per_address, self._tell = most, per_address, tell
        self._told: set[str] = set()  # addresses that have too many

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; raise ConnectionAbortedError if there are too many."""
        plain, address = super().accept()
        connection = _Guest(plain.family, plain.type, plain.proto, fileno=plain.detach())
        connection.enter(self, address[0])
        here = self.open[address[0]]
        if here <= self._per_address and self.open.total() <= self._most:
            return connection, address
        connection.close()
        if address[0] not in self._told:
            self._told.add(address[0])
            self._tell(f"an unknown sender at {address[0]}: connections beyond {here - 1} are closed")
        raise ConnectionAbortedError

    def leave(self, address: str) -> None:
        """Count a connection no longer."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]
            self._told.discard(address)


class _Guest(socket.socket):
    """A connection that tells the door when it is closed."""

    def enter(self, door: Door, address: str) -> None:
        self._door, self._address = door, address
        door.open[address] += 1

    def close(self) -> None:
        if self.fileno() >= 0:
            self._door.leave(self._address)
        super().close()
