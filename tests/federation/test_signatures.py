"""A node's first call to a server, and what its operators read if it is refused."""

import json
import ssl
from types import SimpleNamespace

import pytest

from fedgbo import __version__
from fedgbo.cli.federation_runs import _chosen
from fedgbo.core.errors import ConfigError, FederationError, RunFolderError
from fedgbo.federation import monitor
from fedgbo.federation.control import Status, control
from fedgbo.federation.credentials import make_certificates, make_node
from fedgbo.federation.monitor import EventFile, follow
from fedgbo.federation.network import Address
from fedgbo.federation.signatures import say_hello, sign
from fedgbo.federation.superlink import ServerFolder
from fedgbo.federation.supernode import StaleConnection, TakenPort, start_joined, wait_joined
from tests.federation.test_certificates import listening, tls


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signatures") / "server"
    make_certificates(folder)
    return folder


def answering(folder, status, content):
    """A TLS server that gives each request the same answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ndate: Tue, 17 Nov 2026 20:00:00 GMT\r\ncontent-length: {len(body)}\r\n\r\n"

    def answer(connection):
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                if secure.recv(65536):
                    secure.sendall(head.encode() + body)
        except OSError:
            return

    return answer


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (401, {"error": "its key is not registered"}, "does not know this node's key; send .*node.pub to its adminis"),
        (401, {"error": "its clock is 9 s ahead of the server's"}, "is 9 s ahead .* time is Tue, 17 Nov 2026 20:00:00"),
        (403, {"error": "something else"}, "says: something else"),
        (200, {"name": "a", "clients": "0", "version": "0.0"}, f"has fedgbo 0.0, this node {__version__}; install the"),
        (200, b"<html>", "does not answer as one of fedgbo's"),
    ],
)
def test_refusals_are_explained(ours, tmp_path, status, content, message):
    node = make_node(tmp_path / "node")
    with listening(answering(ours, status, content)) as address, pytest.raises(FederationError, match=message):
        say_hello(node, address, ours / "ca.crt")


def test_a_welcome(ours, tmp_path):
    about = {"name": "hospital-a", "clients": "0-2", "version": __version__}
    with listening(answering(ours, 200, about)) as address:
        assert say_hello(make_node(tmp_path / "node"), address, ours / "ca.crt").clients == "0-2"


def test_a_key_that_is_none(tmp_path):
    node = make_node(tmp_path / "node")
    node.private_key.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"cannot be read: .*; make a new key: fedgbo federation key NAME"):
        sign(node)


def test_only_the_servers_user_operates_it(tmp_path):
    server = ServerFolder(tmp_path / "server")
    make_certificates(server.path)
    with listening(tls(server.path)) as address:
        server.note(address, Address("127.0.0.1", address.port))
        with pytest.raises(RunFolderError, match="operate a server as the user who runs it"), control(server):
            pass


def test_a_node_that_stays_connected_elsewhere_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.federation.supernode.STALE_SECONDS", 0.05)
    monkeypatch.setattr("fedgbo.federation.supernode.RETRY_SECONDS", 0.1)

    def stale(process, node, server):
        raise StaleConnection("the server still considers a connected")

    monkeypatch.setattr("fedgbo.federation.supernode.wait_joined", stale)
    told = []
    with pytest.raises(FederationError, match="is it running elsewhere with the same key"):
        start_joined(lambda: None, make_node(tmp_path / "a"), Address("127.0.0.1", 1), told.append)
    assert told == ["the server still considers a connected; trying again"]


def test_a_port_that_another_process_took_is_no_refusal(tmp_path, monkeypatch):
    """Ports of loopback are free for all users of a machine: the node tries another one."""

    def ended(condition, seconds, what):
        raise FederationError("node a ended")

    log = "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 33023): address already in use"
    process = SimpleNamespace(output=lambda: log, wait_for=ended)
    monkeypatch.setattr("fedgbo.federation.supernode.stop", lambda processes: None)
    with pytest.raises(TakenPort, match="another process has just taken the node's port on this machine"):
        wait_joined(process, make_node(tmp_path / "a"), Address("127.0.0.1", 1))


class Runs:
    """A Control API whose run has this stage, for ever."""

    def __init__(self, stage, folder):
        self.stage, self.stopped = stage, []
        self.server = SimpleNamespace(audited=lambda what: [{"run": 1, "options": {"run-folder": str(folder)}}])

    def runs(self):
        return {1: self.status(1)}

    def status(self, run):
        return Status("finished" if self.stopped else self.stage, "stopped" if self.stopped else "", "")

    def stop(self, run):
        self.stopped.append(run)


def test_a_run_that_never_starts_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "PENDING_SECONDS", 0.1)
    with pytest.raises(FederationError, match=r"did not start the app within 0 s; its apps\.log says more"):
        follow(Runs("pending", tmp_path), 1, EventFile(tmp_path), lambda event: None)


@pytest.mark.parametrize(("seconds", "status"), [("DIED_SECONDS", None), ("LAST_EVENT_SECONDS", "finished")])
def test_an_app_that_died_is_noticed_by_the_folder_that_it_let_go(tmp_path, monkeypatch, seconds, status):
    for name in ("DIED_SECONDS", "LAST_EVENT_SECONDS"):
        monkeypatch.setattr(monitor, name, 0.1 if name == seconds else 1000.0)
    if status is not None:
        (tmp_path / "status.json").write_text(json.dumps({"status": status}))
    (tmp_path / "events.jsonl").write_text('{"kind": "round", "round": 1}\n')
    control = Runs("running", tmp_path)
    ending = follow(control, 1, EventFile(tmp_path), lambda event: None)
    assert (ending.completed, ending.reason, control.stopped) == (False, "the server's app died or was killed", [1])


def test_a_run_is_named_by_its_folder(tmp_path):
    assert _chosen(Runs("running", tmp_path / "hearts"), "hearts")["run"] == 1
    assert _chosen(Runs("running", tmp_path / "hearts"), None)["run"] == 1
    with pytest.raises(ConfigError, match=r"no run lungs is active; name one \(running: hearts\)"):
        _chosen(Runs("running", tmp_path / "hearts"), "lungs")
    with pytest.raises(ConfigError, match=r"0 runs are active; name one \(running: none\)"):
        _chosen(Runs("finished", tmp_path / "hearts"), None)
    assert _chosen(Runs("finished", tmp_path / "hearts"), None, ended=True)["run"] == 1
    with pytest.raises(ConfigError, match=r"no run lungs is known; name one \(running: none\)"):
        _chosen(Runs("finished", tmp_path / "hearts"), "lungs", ended=True)
