"""The door of a server: a proxy that passes the calls of registered nodes to the SuperLink, and nothing else.

Flower serves three APIs on one port: Fleet for nodes, Control for operators, Runtime for its own processes. The
SuperLink listens on loopback, and this process listens for nodes. A call must be one of Fleet's, be signed with a
registered key, and keep within the limits. Each refusal is logged with the node's name. A node that calls too often is
slowed down. Errors of the SuperLink become 503, which Flower's nodes retry; they would give up after a 500.

    python -m fedgbo.federation.proxy SERVER HOST PORT SUPERLINK_PORT REPLY_MIB
"""

import asyncio
import json
import logging
import ssl
import sys
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import Metadata, PullObjectResponse

from fedgbo import __version__
from fedgbo.federation.guard import (
    CALLS,
    Account,
    Connection,
    Door,
    Inbox,
    Limits,
    Refused,
    check_request,
    read_request,
)
from fedgbo.federation.monitor import RunCounts, for_prometheus
from fedgbo.federation.network import LOOPBACK, is_loopback
from fedgbo.federation.signatures import HELLO, BadSignature, check_signature, key_in
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.registry import Node, Registry
from fedgbo.flower.wire import ACTION

FLEET = "/v1/fleet/"
PATHS = {HELLO, *(FLEET + call for call in CALLS)}  # that a node may call
SECONDS = 120.0  # for a call, for reading its answer, and between two calls on one connection
REUSE_SECONDS = 2.0  # for a connection to the SuperLink, which closes it after 5
BODY_SECONDS = 60.0  # for a request's body to arrive
PER_ADDRESS = 400  # connections at the same time; a node has about four
CONNECTIONS = 2000  # of all addresses; further ones are closed
SILENT_SECONDS = 10.0  # since its last call, after which a node may connect anew
CONNECTED_SECONDS = 90.0  # since its last call, in which a node counts as connected; Flower's nodes call every 3 s
LOG = logging.getLogger("fedgbo.proxy")
NOT_TAKEN = 25.0  # calls that a reply counts for if Flower does not take it, and keeps a note of it until the run ends
PIECE = 2**16  # bytes of a request or an answer that are read or sent at a time
PASSED_ON = ("flwr-", "content-type", "accept")  # beginnings of the headers that the SuperLink gets
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Proxy:
    """The application that uvicorn serves."""

    def __init__(self, registry: Registry, superlink: httpx.AsyncClient, limits: Limits) -> None:
        self._registry, self._superlink, self._limits = registry, superlink, limits
        self._nodes: dict[str, Node] = {}  # by key
        self._read: tuple[int, int] | None = None  # version of the registry's file that was read last
        self._accounts: dict[str, Account] = {}
        self._counts: Counter[tuple[str, str]] = Counter()  # by what and node
        self._runs = RunCounts(ServerFolder(registry.path.parent))
        self._told = float("-inf")  # when a refusal of a stranger was logged last; the metrics count them all
        self._asking, self._asked, self._well = asyncio.Lock(), float("-inf"), False  # about the SuperLink's health

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a call."""
        path, caller = scope["path"], (scope.get("client") or ["?"])[0]
        node: Node | None = None
        sent = [(name, value) for name, value in scope["headers"] if name.isascii() and value.isascii()]
        headers = {name.decode(): value.decode() for name, value in sent}  # Flower's are ASCII
        try:
            if (scope["method"], path) == ("GET", "/health"):
                await send_answer(send, 200, await self._health())
                return
            if (scope["method"], path) == ("GET", "/metrics") and is_loopback(caller):
                await send_answer(send, 200, self._metrics(), "text/plain; version=0.0.4")
                return
            node = self._node(headers)  # first, so that every refusal has a name if possible
            account = await self._throttle(node)
            if scope["method"] != "POST" or path not in PATHS:
                raise Refused(403, "only calls of Flower's Fleet API are served here")
            if path == HELLO:
                about = {"name": node.name, "clients": node.clients, "version": __version__}
                await send_answer(send, 200, json.dumps(about).encode())
                return
            async with account.places:  # until it has the answer: one that is not read takes memory
                body = await asyncio.wait_for(self._body(headers, receive), BODY_SECONDS)
                answer = await self._fleet(path, headers, body, node, account)
                self._count("received_bytes", node, len(body))
                self._count("sent_bytes", node, len(answer.content))
                kind = answer.headers.get("content-type", "")
                if not await send_answer(send, answer.status_code, answer.content, kind):
                    LOG.warning("%s: %s: it does not read the answer, and the connection is closed", node.name, path)
        except (Refused, TimeoutError) as refusal:
            name = node.name if node else f"an unknown sender at {caller}"
            reason = str(refusal) or "its request did not arrive in time"
            self._count("refusals", node, 1)
            if node is not None or time.monotonic() - self._told > 1.0:  # strangers must not fill the log
                LOG.warning("%s: %s refused: %s", name, ascii(path[:80])[1:-1], reason)
                self._told = time.monotonic() if node is None else self._told
            status = refusal.status if isinstance(refusal, Refused) else 408
            await send_answer(send, status, json.dumps({"error": reason}).encode())

    def _node(self, headers: Mapping[str, str]) -> Node:
        """Return the registered node that signed a call."""
        node = None
        try:
            if (node := self._registered().get(key := key_in(headers))) is None:
                raise Refused(401, "its key is not registered")
            check_signature(headers, key)
        except BadSignature as error:
            raise Refused(401, f"{error} (key of {node.name})" if node else str(error)) from error
        return node

    def _registered(self) -> Mapping[str, Node]:
        """Return the registered nodes by key, as the registry has them now."""
        about = self._registry.path.stat() if self._registry.path.exists() else None
        version = about and (about.st_mtime_ns, about.st_ino)  # two changes may have the same time
        if version != self._read:
            self._nodes, self._read = {node.key: node for node in self._registry.nodes().values()}, version
        return self._nodes

    async def _throttle(self, node: Node, calls: float = 1.0) -> Account:
        """Wait until the node may make so many calls."""
        now, limits = time.monotonic(), self._limits
        if (account := self._accounts.get(node.key)) is None:
            account = Account(limits.burst, now, asyncio.Semaphore(limits.together), limits)
            self._accounts[node.key] = account
        async with account.turn:
            now = time.monotonic()
            account.credit = min(limits.burst, account.credit + (now - account.at) * limits.calls) - calls
            account.at, account.seen = now, time.time()
            if account.credit < 0:
                self._count("throttled", node, 1)
                await asyncio.sleep(-account.credit / limits.calls)
        return account

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        most, body, more = self._limits.request_bytes, bytearray(), True
        if int(headers.get("content-length", "0")) > most:
            raise Refused(413, f"the request has {headers['content-length']} bytes, at most {most} are allowed")
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                raise Refused(400, "the connection was closed")
            body += part.get("body", b"")
            more = part.get("more_body", False)
            if len(body) > most:
                raise Refused(413, f"the request has more than the allowed {most} bytes")
        return bytes(body)

    async def _fleet(
        self, path: str, headers: Mapping[str, str], body: bytes, node: Node, account: Account
    ) -> httpx.Response:
        """Check a call of the Fleet API, pass it on, and note what its answer tells."""
        call = path.removeprefix(FLEET)
        request = read_request(call, body, self._limits)
        size = account.reply_bytes + (len(body) if call == "push-object" else 0)
        objects = check_request(request, node.id, size, account.inbox, account.reply_limits)
        if objects:
            await self._throttle(node, objects / self._limits.objects_per_call)
        if call == "confirm-message-received" and not self._confirms(request.message_object_id, node, account.inbox):
            return httpx.Response(200, headers={"content-type": "application/protobuf"})
        if call == "activate-node":
            await self._forget_dead(headers, node, account)
        else:
            account.worked = time.monotonic()
        answer = await self._pass(path, headers, body, node)
        account.reply_bytes += len(body) if call == "push-object" else 0  # not if the node has to send it again
        if answer.status_code != 200:
            return answer
        if call == "pull-messages":
            sent = PullMessagesResponse.FromString(answer.content)
            types = {one.metadata.message_id: one.metadata.message_type for one in sent.messages_list}
            for tree in sent.message_object_trees:
                account.inbox.add(tree, is_question=types.get(tree.object_id) == f"query.{ACTION}")
        elif call == "pull-object" and PullObjectResponse.FromString(answer.content).object_available:
            account.inbox.pulled(request.object_id)
        elif call == "confirm-message-received":
            account.inbox.confirmed(request.message_object_id)
        elif call == "push-messages":
            await self._begin_reply(request.messages_list[0].metadata, answer.content, node, account)
        return answer

    def _confirms(self, message: str, node: Node, inbox: Inbox) -> bool:
        """Return whether a confirmation is passed on. The SuperLink deletes confirmed objects, even if the server is
        still sending them to this node or to others. Other confirmations are answered with 200 all the same.
        """
        if inbox.has_confirmed(message):  # and lost the answer
            return False
        if not inbox.is_complete(message):
            reason = "it has not pulled all objects of this message since the proxy began"
            LOG.warning("%s: %sconfirm-message-received ignored: %s", node.name, FLEET, reason)
            return False
        return True

    async def _begin_reply(self, about: Metadata, answer: bytes, node: Node, account: Account) -> None:
        """Count the bytes of a reply from here, if the SuperLink took it and it is the first to its message."""
        if not PushMessagesResponse.FromString(answer).objects_to_push:
            LOG.warning("%s: its reply was not taken: it is late, or not the first", node.name)
            await self._throttle(node, NOT_TAKEN)
        else:
            account.begin_reply(about.reply_to_message_id, self._limits)

    async def _pass(self, path: str, headers: Mapping[str, str], body: bytes, node: Node) -> httpx.Response:
        """Pass a call on to the SuperLink."""
        try:
            answer = await self._post(path, headers, body)
        except httpx.HTTPError as error:
            raise Refused(503, f"the SuperLink does not answer ({type(error).__name__})") from error
        if answer.status_code >= 500:
            raise Refused(503, "the SuperLink had an internal error")
        if answer.status_code >= 400:
            self._count("refusals", node, 1)
            LOG.warning("%s: %s refused by the SuperLink with status %d", node.name, path, answer.status_code)
        return answer

    async def _forget_dead(self, headers: Mapping[str, str], node: Node, account: Account) -> None:
        """Before a node connects, end its last connection if that is silent: Flower would wait for a minute.

        A node whose key is in use elsewhere is not silent, and Flower refuses the second one.
        """
        if time.monotonic() - account.worked > SILENT_SECONDS:
            goodbye = DeactivateNodeRequest(node_id=node.id).SerializeToString()
            with suppress(httpx.HTTPError):  # it refuses if there is none
                await self._post(f"{FLEET}deactivate-node", headers, goodbye)

    async def _post(self, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        kept = {name: value for name, value in headers.items() if name.startswith(PASSED_ON)}
        return await self._superlink.post(path, content=body, headers=kept)

    async def _health(self) -> bytes:
        """Ask the SuperLink, once a second for all who want to know."""
        async with self._asking:
            if time.monotonic() - self._asked > 1.0:
                self._well = False
                with suppress(httpx.HTTPError):
                    self._well = (await self._superlink.get("/health", timeout=5.0)).status_code < 500
                self._asked = time.monotonic()
        if self._well:
            return b'{"status": "ok"}\n'
        raise Refused(503, "the SuperLink does not answer")

    def _count(self, what: str, node: Node | None, amount: int) -> None:
        self._counts[what, node.name if node else ""] += amount

    def _metrics(self) -> bytes:
        """Return counts by node, and by run and node, and the nodes."""
        nodes, now = self._registered(), time.time()
        seen = {node.name: self._accounts[key].seen for key, node in nodes.items() if key in self._accounts}
        values = [(f"{what}_total", {"node": node}, count) for (what, node), count in self._counts.items()]
        runs = self._runs.read().items()
        values += [(f"{what}_total", {"run": run, "node": node}, count) for (what, run, node), count in runs]
        values += [("last_call_timestamp_seconds", {"node": node}, round(at)) for node, at in seen.items()]
        connected = sum(now - at < CONNECTED_SECONDS for at in seen.values())
        return for_prometheus([*values, ("connected_nodes", {}, connected), ("registered_nodes", {}, len(nodes))])


async def send_answer(send: Send, status: int, body: bytes, kind: str = "application/json") -> bool:
    """Send an answer; return whether the caller reads it in time."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    try:
        async with asyncio.timeout(SECONDS):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            for begin in range(0, max(1, len(body)), PIECE):  # `send` waits while the last piece is not on its way
                piece, more = body[begin : begin + PIECE], begin + PIECE < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
    except TimeoutError:
        return False
    except AttributeError:  # of Python's TLS, if the connection was closed
        return True
    return True


def serve(folder: Path, host: str, port: int, superlink_port: int, reply_mib: int) -> None:
    """Serve until a signal."""
    import resource  # Windows has none

    most = min(2 * CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each connection; often 1024 by default
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    LOG.setLevel(logging.INFO)
    SSLProtocol.max_size = PIECE  # bytes that it takes for each connection: by itself 256 KiB
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    address, reused = f"https://{LOOPBACK}:{superlink_port}", httpx.Limits(keepalive_expiry=REUSE_SECONDS)
    superlink = httpx.AsyncClient(base_url=address, verify=context, timeout=SECONDS, limits=reused, trust_env=False)
    LOG.info("nodes are served at %s:%d", host, port)
    door = Door(host, port, CONNECTIONS, PER_ADDRESS, LOG.warning)
    config = uvicorn.Config(
        Proxy(Registry(folder), superlink, Limits(reply_bytes=reply_mib * 2**20)),
        loop="asyncio",  # uvloop would not ask the door
        http=Connection,
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        lifespan="off",
        access_log=False,
        log_level="error",  # a warning for each request that is not HTTP would let strangers fill the log
        server_header=False,
        proxy_headers=False,  # an X-Forwarded-For says what its sender likes
        ws="none",
        timeout_keep_alive=int(SECONDS),
    )
    uvicorn.Server(config).run(sockets=[door])


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
