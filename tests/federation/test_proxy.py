"""The proxy in this process: what it refuses, whom it names, and what it makes of a SuperLink that fails."""

import asyncio
import datetime
import socket
import threading
import time
from contextlib import suppress

import httpx
import pytest
import uvicorn
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.run_pb2 import GetRunRequest

from fedgbo.federation import guard
from fedgbo.federation.credentials import make_node, read_public_key
from fedgbo.federation.guard import Limits
from fedgbo.federation.proxy import SILENT_SECONDS, Proxy, send_answer
from fedgbo.federation.signatures import HELLO, TIME, sign
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.messenger import Events
from fedgbo.flower.registry import Registry
from tests.cli.test_processes import wait_for
from tests.federation.attacks import ORDER, REPLY, reply_of

PUSH = "/v1/fleet/push-messages"


class Door:
    """A proxy with one registered node, hospital-a with Flower's id 7, and a SuperLink that answers `status`."""

    def __init__(self, folder, limits=Limits()):  # noqa: B008 - frozen
        self.node, self.stranger = make_node(folder / "hospital-a"), make_node(folder / "stranger")
        Registry(folder).add("hospital-a", 7, read_public_key(self.node.public_key), "0-2")
        self.status, self.passed, self.wanted = 200, [], ["an object"]  # the objects that are still to be sent
        self.answer = b""
        superlink = httpx.AsyncClient(base_url="https://superlink", transport=httpx.MockTransport(self._superlink))
        self.proxy = Proxy(Registry(folder), superlink, limits)

    def _superlink(self, request):
        if self.status is None:
            raise httpx.ConnectError("refused")
        self.passed.append((request.url.path, request.content))
        self.headers = dict(request.headers)
        wanted = PushMessagesResponse(objects_to_push=self.wanted).SerializeToString()
        return httpx.Response(self.status, content=wanted if request.url.path == PUSH else self.answer)

    def call(self, path, content=b"", headers=None, method="POST", client=("10.0.0.9", 1)):
        async def go():
            transport = httpx.ASGITransport(self.proxy, client=client)
            async with httpx.AsyncClient(transport=transport, base_url="https://x") as caller:
                signed = sign(self.node) if headers is None else headers
                return await caller.request(method, path, content=content, headers=signed)

        return asyncio.run(go())


def test_a_node_that_was_killed_connects_again_when_its_old_connection_is_silent(door, monkeypatch):
    activate, heartbeat, goodbye = (
        "/v1/fleet/" + name for name in ("activate-node", "send-node-heartbeat", "deactivate-node")
    )
    for path in (heartbeat, activate):  # it runs, and its key is used a second time
        door.call(path)
    assert [path for path, _ in door.passed] == [heartbeat, activate]
    now = time.monotonic
    monkeypatch.setattr("fedgbo.federation.proxy.time.monotonic", lambda: now() + SILENT_SECONDS)
    door.call(activate)
    assert door.passed[2:] == [(goodbye, DeactivateNodeRequest(node_id=7).SerializeToString()), (activate, b"")]


@pytest.fixture
def door(tmp_path):
    return Door(tmp_path)


def test_calls_of_a_registered_node_are_passed_on(door):
    request, door.answer = GetRunRequest(run_id=1).SerializeToString(), b"answer"
    answer = door.call("/v1/fleet/get-run", request)
    assert (answer.status_code, answer.content) == (200, b"answer")
    assert door.passed == [("/v1/fleet/get-run", request)]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/fleet/pull-messages",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/docs",
        "/",
    ],
)
def test_nothing_but_fleet_is_passed_on(door, path, caplog):
    assert door.call(path).status_code == 403
    assert door.call(path, method="GET").status_code == 403
    assert not door.passed
    assert "hospital-a: " in caplog.text
    assert "refused: only calls of Flower's Fleet API are served here" in caplog.text
    assert door.call(path, headers={}).status_code == 401


def moved(headers, seconds):
    """Headers of a node whose clock is wrong."""
    return headers | {TIME: (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()}


def test_strangers_and_wrong_signatures_are_refused(door, caplog):
    assert door.call(PUSH, headers={}).json() == {"error": "it sent no key"}
    assert door.call(PUSH, headers=sign(door.stranger)).json() == {"error": "its key is not registered"}
    assert "an unknown sender at 10.0.0.9" in caplog.text
    forged = {**sign(door.stranger), "flwr-public-key": sign(door.node)["flwr-public-key"]}
    assert door.call(PUSH, headers=forged).json() == {"error": "its signature is not valid (key of hospital-a)"}
    assert door.call(PUSH, headers=moved(sign(door.node), 1)).status_code == 401  # the signature is of another time
    assert not door.passed


@pytest.mark.parametrize(("seconds", "said"), [(60, "its clock is 60 s ahead"), (-400, "its clock is 400 s behind")])
def test_a_clock_that_is_wrong_is_named(door, monkeypatch, seconds, said):
    real = datetime.datetime

    class Wrong(real):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) + datetime.timedelta(seconds=seconds)

    monkeypatch.setattr("fedgbo.federation.signatures.datetime.datetime", Wrong)
    headers = sign(door.node)
    monkeypatch.undo()
    assert said in door.call(HELLO, headers=headers).json()["error"]


def test_hello_says_what_the_server_knows(door):
    found = door.call(HELLO).json()
    assert (found["name"], found["clients"]) == ("hospital-a", "0-2")


def test_a_reply_with_too_many_objects_is_refused_and_named(door, caplog):
    assert door.call(PUSH, reply_of(7, objects=100)).status_code == 200
    answer = door.call(PUSH, reply_of(7, objects=5_000))
    assert answer.status_code == 413
    assert (
        "hospital-a: /v1/fleet/push-messages refused: the reply has more than the allowed 4096 objects" in caplog.text
    )
    answer = door.call(PUSH, reply_of(7, objects=100_000))
    assert answer.status_code == 413
    assert "refused: the request has more than the allowed 1048576 bytes" in caplog.text


def test_a_path_cannot_forge_a_line_of_the_log(door, caplog):
    door.call("/v1/fleet/x%0aWARNING%20hospital-b:%20forged", b"")
    assert r"/v1/fleet/x\nWARNING hospital-b: forged refused" in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (reply_of(8, objects=1), 403, "in the name of another node"),
        (reply_of(7, objects=1, to=""), 400, "a message that is no reply, as only the server may"),
        (reply_of(7, objects=1, message_type="train\0"), 400, "is not a short text"),
        (reply_of(7, objects=1, to="an order\nWARNING"), 400, "an id that is not a SHA-256"),
        (reply_of(7, objects=1, root="1" * 64), 400, "a reply with the objects of another message"),
        (reply_of(7, objects=1, message_id="x", root="x"), 400, "an id that is not a SHA-256"),
        (b"\xff\xff\xff", 400, "not a Flower message"),
        (PushMessagesRequest(message_object_trees=[ObjectTree()] * 2).SerializeToString(), 400, "0 replies in one"),
    ],
)
def test_replies_that_are_none(door, body, status, said):
    answer = door.call(PUSH, body)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


def test_calls_on_which_flower_spends_much_time_are_refused(door, caplog):
    """A few of these a second made the SuperLink answer all nodes after seconds."""
    ids = PullMessagesRequest(message_ids=[""] * 500_000).SerializeToString()
    reply = PushMessagesRequest.FromString(reply_of(7, objects=1))
    reply.messages_list[0].content.items.add(key="x").config_record.SetInParent()
    for call, body, status, reason in (
        ("pull-messages", ids, 413, "the request has more than the allowed 4096 bytes"),
        ("push-messages", reply.SerializeToString(), 400, "it sent a reply with records in the message itself"),
    ):
        assert door.call(f"/v1/fleet/{call}", body).status_code == status
        assert f"hospital-a: /v1/fleet/{call} refused: {reason}" in caplog.text
    assert not door.passed


NAN, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("push-messages", reply_of(7, objects=1, ttl=NAN)),  # Flower stored it, and could not read the reply again
        ("push-messages", reply_of(7, objects=1, created_at=ENDLESS)),
        ("push-messages", reply_of(7, objects=1, runtime=NAN)),
        ("push-messages", reply_of(7, objects=1, ttl=-1.0)),
        ("activate-node", ActivateNodeRequest(heartbeat_interval=NAN).SerializeToString()),
        ("send-node-heartbeat", SendNodeHeartbeatRequest(heartbeat_interval=1e9).SerializeToString()),
    ],
)
def test_times_that_are_none_are_refused_and_named(door, call, body, caplog):
    answer = door.call(f"/v1/fleet/{call}", body)
    assert (answer.status_code, "it sent a time of" in answer.text) == (400, True)
    assert f"hospital-a: /v1/fleet/{call} refused" in caplog.text
    assert not door.passed


def piece(size, session="0123abcd-0123-0123-0123-0123456789ab", one=REPLY):
    """A part of a reply, as bytes of this number."""
    request = PushObjectRequest(object_id=one, session_id=session)
    request.object_content = b"x" * (size - request.ByteSize() - 3)
    assert request.ByteSize() == size
    return request.SerializeToString()


def test_large_requests_and_replies_are_refused(tmp_path):
    door, push = Door(tmp_path, Limits(request_bytes=1000, reply_bytes=1500)), "/v1/fleet/push-object"
    assert "1001 bytes, at most 1000" in door.call(push, piece(1001)).text

    async def pieces():
        for _ in range(20):
            yield b"x" * 100

    assert "more than the allowed 1000 bytes" in door.call(push, pieces()).text
    door.status = 503  # for example, its disk is full: the node sends the object again
    for _ in range(3):
        assert door.call(push, piece(900)).status_code == 503
    door.status = 200
    assert door.call(push, piece(900)).status_code == 200
    assert "the reply has more than the allowed 1500 bytes" in door.call(push, piece(900)).text
    for to, wanted, status in (
        ("1" * 64, [], 413),  # the SuperLink did not take it
        ("1" * 64, ["an object"], 200),  # a new reply begins
        ("1" * 64, ["an object"], 413),  # it does not begin twice
        ("2" * 64, ["an object"], 200),
    ):
        door.wanted = wanted
        assert door.call(PUSH, reply_of(7, objects=1, to=to)).status_code == 200
        assert door.call(push, piece(900)).status_code == status


def confirm(door, message):
    """Pull a message without parts, and confirm it."""
    door.answer = PullObjectResponse(object_found=True, object_available=True).SerializeToString()
    for call, request in (
        ("pull-object", PullObjectRequest(object_id=message)),
        ("confirm-message-received", ConfirmMessageReceivedRequest(message_object_id=message)),
    ):
        assert door.call(f"/v1/fleet/{call}", request.SerializeToString()).status_code == 200


def test_an_answer_to_a_question_must_be_small(tmp_path, caplog):
    """A node that comes and goes is asked each time, and could fill the disk with answers as large as updates."""
    door, push = Door(tmp_path, Limits(answer_bytes=1500)), "/v1/fleet/push-object"
    for order, kind, statuses in (("1", "train.fedgbo", [200, 200]), ("2", "query.fedgbo", [200, 413])):
        message = Message(metadata=Metadata(message_id=order * 64, message_type=kind))
        tree = ObjectTree(object_id=order * 64)
        door.answer = PullMessagesResponse(messages_list=[message], message_object_trees=[tree]).SerializeToString()
        assert door.call("/v1/fleet/pull-messages").status_code == 200
        confirm(door, order * 64)
        assert door.call(PUSH, reply_of(7, objects=1, to=order * 64)).status_code == 200
        assert [door.call(push, piece(900)).status_code for _ in range(2)] == statuses
    assert "hospital-a: /v1/fleet/push-object refused: the reply has more than the allowed 1500 bytes" in caplog.text


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("get-fab", GetFabRequest(hash_str="x\nWARNING node_id=8 announced")),
        ("pull-object", PullObjectRequest(object_id="A" * 64)),
        ("push-object", PushObjectRequest(object_id="x" * 10**6)),
        ("confirm-message-received", ConfirmMessageReceivedRequest(message_object_id="")),
    ],
)
def test_ids_that_are_none_do_not_reach_flowers_log(door, call, request_, caplog):
    assert door.call(f"/v1/fleet/{call}", request_.SerializeToString()).status_code == 400
    assert f"hospital-a: /v1/fleet/{call} refused: it sent an id that is not a SHA-256" in caplog.text
    assert not door.passed


def test_an_object_needs_the_session_of_its_reply(door, caplog):
    """Without one, Flower takes it for an object that the server is about to send, and then refuses the server's."""
    assert door.call("/v1/fleet/push-object", piece(200, session="")).status_code == 400
    assert "hospital-a: /v1/fleet/push-object refused: it sent an object without the session" in caplog.text
    assert not door.passed


def test_a_node_confirms_messages_that_it_has_once(door, caplog):
    """Flower deletes what is confirmed, though the server may still be sending it, to others as well."""

    def confirm(message=ORDER):
        door.passed.clear()
        request = ConfirmMessageReceivedRequest(message_object_id=message).SerializeToString()
        return door.call("/v1/fleet/confirm-message-received", request).status_code, len(door.passed)

    def pull(one, available):
        door.answer = PullObjectResponse(object_found=True, object_available=available).SerializeToString()
        door.call("/v1/fleet/pull-object", PullObjectRequest(object_id=one).SerializeToString())

    order = ObjectTree(object_id=ORDER, children=[ObjectTree(object_id="b" * 64)])
    assert confirm() == (200, 0)  # of another node, or from before a restart of the proxy
    assert "hospital-a: /v1/fleet/confirm-message-received ignored: it has not pulled all objects" in caplog.text
    door.answer = PullMessagesResponse(message_object_trees=[order]).SerializeToString()
    door.call("/v1/fleet/pull-messages")
    for one, available in ((ORDER, True), ("b" * 64, False)):
        assert confirm() == (200, 0)
        pull(one, available)
    assert confirm() == (200, 0)
    pull("b" * 64, True)
    door.status, told = 503, len(caplog.records)
    assert confirm() == (503, 1)  # the SuperLink did not take it, and Flower confirms again
    door.status = 200
    assert confirm() == (200, 1)
    assert confirm() == (200, 0)
    again = ObjectTree(object_id="c" * 64, children=order.children)  # the node keeps what it has pulled
    door.answer = PullMessagesResponse(message_object_trees=[again]).SerializeToString()
    door.call("/v1/fleet/pull-messages")
    pull("c" * 64, True)
    assert confirm("c" * 64) == (200, 1)
    assert not any("ignored" in record.getMessage() for record in caplog.records[told:])
    assert door.call(PUSH, reply_of(7, 1, message_id=ORDER, root=ORDER)).status_code == 403
    assert "hospital-a: /v1/fleet/push-messages refused: it sent the server's message as its reply" in caplog.text


def test_a_message_that_was_not_confirmed_is_not_answered(door, caplog):
    """Flower keeps it, with the model, until it is confirmed or expires."""
    door.answer = PullMessagesResponse(message_object_trees=[ObjectTree(object_id=ORDER)]).SerializeToString()
    door.call("/v1/fleet/pull-messages")
    assert door.call(PUSH, reply_of(7, objects=1)).status_code == 400
    assert "hospital-a: /v1/fleet/push-messages refused: it answered a message that it has not confirmed" in caplog.text
    confirm(door, ORDER)
    assert door.call(PUSH, reply_of(7, objects=1)).status_code == 200


def test_replies_that_flower_does_not_take_are_named_and_cost_more(tmp_path, caplog):
    """Flower notes each until the run ends."""
    door = Door(tmp_path, Limits(calls=500.0, burst=5.0))
    assert door.call(PUSH, reply_of(7, objects=1)).status_code == 200
    assert not caplog.records
    door.wanted, began = [], time.monotonic()
    for _ in range(3):
        assert door.call(PUSH, reply_of(7, objects=1)).status_code == 200
    assert time.monotonic() - began > 0.1  # 75 calls
    assert caplog.messages == ["hospital-a: its reply was not taken: it is late, or not the first"] * 3


def test_the_objects_of_a_reply_count_as_calls(tmp_path):
    door = Door(tmp_path, Limits(calls=100.0, burst=5.0, objects_per_call=4.0))
    began = time.monotonic()
    assert door.call(PUSH, reply_of(7, objects=99)).status_code == 200
    assert time.monotonic() - began > 0.2  # 1 + 25 calls


def test_only_flowers_headers_are_passed_on(door):
    strange = [*sign(door.node).items(), ("x-name", "caf\xe9".encode("latin-1")), ("x-forwarded-for", "10.0.0.1")]
    assert door.call("/v1/fleet/pull-messages", headers=strange).status_code == 200
    assert "flwr-signature" in door.headers
    assert not {"x-name", "x-forwarded-for"} & door.headers.keys()


def test_a_node_that_calls_too_often_is_slowed_down(tmp_path):
    door = Door(tmp_path, Limits(calls=50.0, burst=5.0))
    began = time.monotonic()
    for _ in range(15):
        assert door.call("/v1/fleet/pull-messages").status_code == 200
    assert time.monotonic() - began > 0.15  # ten calls more than the burst, 50 a second
    for _ in range(15):
        assert door.call("/v1/control/start-run").status_code == 403
    assert time.monotonic() - began > 0.45  # refused ones count too


@pytest.mark.parametrize("status", [500, None])
def test_an_error_of_the_superlink_becomes_one_that_nodes_retry(door, status):
    door.status = status
    assert door.call("/v1/fleet/pull-messages").status_code == 503
    assert door.call("/health", method="GET").status_code == 503
    door.status = 403
    assert door.call("/v1/fleet/pull-messages").status_code == 403


def test_health_and_metrics(door):
    request, door.answer = GetRunRequest(run_id=2**27).SerializeToString(), b"answer"
    door.call("/v1/fleet/get-run", request)
    door.call("/v1/control/start-run")
    for _ in range(3):
        assert door.call("/health", method="GET", headers={}).json() == {"status": "ok"}
    assert [path for path, _ in door.passed].count("/health") == 1  # once a second, whoever asks
    assert door.call("/metrics", method="GET").status_code == 403
    text = door.call("/metrics", method="GET", headers={}, client=("127.0.0.1", 1)).text
    assert '# TYPE fedgbo_received_bytes_total counter\nfedgbo_received_bytes_total{node="hospital-a"} 5\n' in text
    assert 'fedgbo_sent_bytes_total{node="hospital-a"} 6\n' in text
    assert "fedgbo_refusals_total" in text
    assert "# TYPE fedgbo_registered_nodes gauge\nfedgbo_registered_nodes 1\n" in text
    assert "fedgbo_connected_nodes 1\n" in text


def test_metrics_count_the_rounds_of_runs_and_what_went_wrong_in_them(door, tmp_path):
    def scraped():
        text = door.call("/metrics", method="GET", headers={}, client=("127.0.0.1", 1)).text
        return [line for line in text.splitlines() if "run=" in line]

    (tmp_path / "hearts").mkdir()
    ServerFolder(tmp_path).audit("start", run=1, options={"run-folder": str(tmp_path / "hearts")})
    assert scraped() == []  # it has no events yet
    events = Events()
    events.folder = tmp_path / "hearts"
    for number in (1, 2):
        events("done_round", round=number)
    events("rejected", round=2, client=0, node="hospital-a", reason="params has a NaN")
    rejected = 'fedgbo_rejected_updates_total{run="hearts",node="hospital-a"} 1'
    assert scraped() == [rejected, 'fedgbo_rounds_total{run="hearts"} 2']
    events("done_round", round=3)
    assert scraped() == [rejected, 'fedgbo_rounds_total{run="hearts"} 3']


def test_a_node_that_was_removed_is_refused_at_once(door, tmp_path):
    assert door.call(HELLO).status_code == 200
    Registry(tmp_path).remove("hospital-a")
    assert door.call(HELLO).status_code == 401


@pytest.fixture
def served(monkeypatch, request):
    """A real server with the proxy's connections, on loopback and without TLS; its answers take 0.5 s.

    The parameter is the number of bytes of an answer.
    """
    monkeypatch.setattr("fedgbo.federation.guard.IDLE_SECONDS", 0.2)

    async def app(scope, receive, send):
        await asyncio.sleep(0.5)
        await send_answer(send, 200, bytes(getattr(request, "param", 2)))

    door = guard.Door("127.0.0.1", 0, 10, 10, print)
    config = uvicorn.Config(app, http=guard.Connection, loop="asyncio", lifespan="off", log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started, 10)
    yield door.getsockname()
    server.should_exit = True
    thread.join(10)


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET / HTTP/1.1\r\nhost: x\r\nx-a: "])
def test_connections_without_a_whole_request_are_closed(served, begun):
    with socket.create_connection(served, timeout=10) as connection:
        connection.sendall(begun)
        assert connection.recv(100) == b""


def test_a_request_that_takes_longer_than_an_idle_connection_is_answered(served):
    with socket.create_connection(served, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("header", [b"x-a: " + b"x" * 10**6 + b"\r\n", b"x-a: x\r\n" * 10**5])
def test_headers_without_end_are_refused(served, header):
    with socket.create_connection(served, timeout=10) as connection, suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n" + header)
        assert connection.recv(1000)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")


@pytest.mark.parametrize("served", [10**8], indirect=True)
def test_an_answer_that_is_not_read_neither_fills_memory_nor_stays(served, monkeypatch):
    monkeypatch.setattr("fedgbo.federation.proxy.SECONDS", 0.3)
    with socket.create_connection(served, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(1.5)
        received = 0
        while part := connection.recv(2**20):
            received += len(part)
        assert 0 < received < 5 * 10**7  # what the system had taken
