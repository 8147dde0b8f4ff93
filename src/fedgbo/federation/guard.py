"""What those who call the proxy may do: connections, the size of requests, and the contents of a node's calls."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 60.0  # after which a connection is closed on which no request begins, or none is completed
HEARTBEAT_SECONDS = 300.0  # at most between two heartbeats of a node; Flower's have 30
LONGEST = 200  # of texts in a reply, in characters
LATEST = 1e10  # of times in seconds since 1970
PARSED: Mapping[str, Any] = {  # requests whose contents are checked
    "push-messages": PushMessagesRequest,
    "activate-node": ActivateNodeRequest,
    "send-node-heartbeat": SendNodeHeartbeatRequest,
}


@dataclass(frozen=True)
class Limits:
    """What one node may send."""

    request_bytes: int = 8 * 2**20  # Flower splits arrays into pieces of 5 MiB
    together: int = 16  # requests in memory at the same time; Flower's nodes send three
    message_bytes: int = 2**20  # a reply's message, which names its objects in 80 bytes each
    objects: int = 4096  # records, arrays and pieces of arrays in a reply
    reply_bytes: int = 4 * 2**30  # all objects of a reply
    calls: float = 200.0  # a second
    burst: float = 400.0  # calls at once


class Refused(Exception):  # noqa: N818 - an answer, not an error of the server
    """A call that is not passed on: the HTTP status, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def check_request(call: str, body: bytes, node: int, reply_bytes: int, limits: Limits) -> None:
    """Raise Refused if a request of the node with this id exceeds the limits, or has contents that harm others.

    `reply_bytes` is the size of all objects that belong to its reply so far.
    """
    if call == "push-object" and reply_bytes > limits.reply_bytes:
        raise Refused(413, f"the reply has more than the allowed {limits.reply_bytes} bytes")
    if call not in PARSED:
        return
    if len(body) > limits.message_bytes:  # before it is parsed: millions of empty objects would take long
        raise Refused(413, f"the reply's message has more than the allowed {limits.message_bytes} bytes")
    try:
        request = PARSED[call].FromString(body)
    except Exception as error:  # protobuf's errors differ between its implementations
        raise Refused(400, "the request is not a Flower message") from error
    if isinstance(request, PushMessagesRequest):
        _check_reply(request, node, limits)
    else:
        _check_seconds(request.heartbeat_interval, HEARTBEAT_SECONDS)


def _check_reply(request: PushMessagesRequest, node: int, limits: Limits) -> None:
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise Refused(400, f"it sent {len(request.messages_list)} replies in one call")
    about = request.messages_list[0].metadata
    if about.src_node_id != node:
        raise Refused(403, "it sent a reply in the name of another node")
    if not about.reply_to_message_id:
        raise Refused(400, "it sent a message that is no reply, as only the server may")
    if not all(len(text) <= LONGEST and text.isprintable() for text in (about.message_type, about.group_id)):
        raise Refused(400, "the type or the group of its reply is not a short text")
    for seconds in (about.created_at, about.ttl, *request.clientapp_runtime_list):
        _check_seconds(seconds, LATEST)
    objects, waiting = 0, [request.message_object_trees[0]]
    while waiting:
        tree = waiting.pop()
        objects += 1
        if objects + len(waiting) + len(tree.children) > limits.objects:
            raise Refused(413, f"the reply has more than the allowed {limits.objects} objects")
        waiting += tree.children


def _check_seconds(seconds: float, most: float) -> None:
    """Refuse times such as NaN: Flower's database would keep them, and Flower would fail whenever it reads them."""
    if not 0 <= seconds <= most:
        raise Refused(400, f"it sent a time of {seconds} seconds")


class Connection(H11Protocol):
    """A connection that is closed if it is not used. h11 limits headers; uvicorn's other parser does not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
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
            self._tell(f"a stranger at {address[0]}: connections beyond {here - 1} are closed")
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
