"""The page docs/federation.md, typed as it stands: a server and two hospitals, in processes of their own."""

import os
import re
import shlex
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from fedgbo.federation.credentials import NodeFolder
from fedgbo.federation.monitor import digest_of
from fedgbo.federation.network import free_ports
from fedgbo.federation.processes import process_tree
from fedgbo.federation.proxy import PER_ADDRESS
from fedgbo.federation.signatures import HELLO, sign
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.registry import Registry
from tests.cli.test_processes import wait_for
from tests.federation.attacks import reply_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()


def typed(command, port):
    """The words of a command on the page that begins so, for this machine."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"fedgbo federation {command}")]
    line = line.replace("fl.example.org", "127.0.0.1").replace("0.0.0.0", "127.0.0.1").replace("8000", str(port))
    return shlex.split(line)[1:]


class Site:
    """Commands in one folder; those that stay are stopped in the end."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def do(self, words, code=0):
        """Do a short command in this process, which saves loading everything again."""
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.stderr
        return done.stdout + done.stderr

    def start(self, name, words):
        """Start a command that stays; return its process and the file of its output."""
        file = self.folder / f"{name}.out"
        with file.open("a") as target:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedgbo", *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=target,
                stderr=target,
            )  # fmt: skip
        self.running.append(process)
        return process, file

    def hear(self, started, text):
        """Wait until a command says this."""
        process, file = started
        wait_for(lambda: text in file.read_text() or process.poll() is not None, 240)
        assert process.poll() is None, file.read_text()

    def end(self):
        marks = process_tree(process.pid for process in self.running)
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        wait_for(lambda: not any(mark.alive for mark in marks), 30)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a", "b", "test"):
        x = rng.normal(size=(20, 4))
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([x, x[:, 0] > 0]), delimiter=",")
    task = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('planted by another user')")  # in the folder of `serve`
    (tmp_path / "hearts.py").write_text(task.replace("/srv/test.csv", str(tmp_path / "test.csv")))
    place = Site(tmp_path)
    yield place
    place.end()


def hospital(words, letter):
    """The command of hospital A, for another hospital, with its own records."""
    return [word.replace("hospital-a", f"hospital-{letter}").replace("/srv/records", letter) for word in words]


def test_the_page_trains_on_both_hospitals_and_attacks_from_one_of_them_fail(site):
    port = free_ports(1)[0]
    site.do(typed("certs server", port))
    server, said = served = site.start("serve", typed("serve", port))
    for letter in "ab":
        site.do(hospital(typed("key", port), letter))
        (site.folder / f"hospital-{letter}.pub").write_bytes(
            (site.folder / f"hospital-{letter}" / f"hospital-{letter}.pub").read_bytes()
        )
    (site.folder / "ca.crt").write_bytes((site.folder / "server" / "ca.crt").read_bytes())
    made = typed("new app", port)
    (pin,) = re.findall(r"--app-sha256 ([0-9a-f]{64})", site.do(made))
    longer = [{"app": "long-app", "5": "9"}.get(word, word) for word in made]  # with 9 rounds
    (other,) = re.findall(r"--app-sha256 ([0-9a-f]{64})", site.do(longer))
    join = typed("join", port)
    site.hear(served, "serving nodes at")
    assert "does not know this node's key" in site.do(hospital(join, "a"), code=7)
    site.do(typed("register server hospital-a.pub", port))
    second = typed("register server hospital-b.pub", port)
    assert "client 0 of hospital-b already belongs to hospital-a" in site.do([*second[:-1], "0"], code=2)
    site.do(second)
    first_started = site.start("a", [*hospital(join, "a"), "--app-sha256", pin, "--app-sha256", other])
    second_node, told = second_started = site.start("b", hospital(join, "b"))
    assert "registered as hospital-b for clients 1, not for client 0" in site.do(
        [*hospital(join, "b"), "--clients", "0"], code=2
    )
    for started in (first_started, second_started):
        site.hear(started, "has joined the federation")
    run, out = site.start("run", typed("run server app --out", port))
    (proxy,) = [one for one in process_tree([server.pid]) if "federation.proxy" in command_line(one.pid)]
    proxy.signal(signal.SIGKILL)
    wait_for(lambda: "the proxy runs again" in said.read_text(), 120)

    wait_for(lambda: "allow it with" in told.read_text() or run.poll() is not None, 120)
    assert f"the server asks this node to run app {pin}" in told.read_text()
    (allow,) = re.findall(r"allow it with: fedgbo (.*)", told.read_text())
    site.do(shlex.split(allow))
    wait_for(lambda: "round 1 of 5 done" in out.read_text() or run.poll() is not None, 180)
    attack(site, port)
    lock_the_database(ServerFolder(site.folder / "server"))
    assert "hospital-a" in site.do(["federation", "nodes", "server"])
    wait_for(lambda: run.poll() is not None, 240)
    site.running.remove(run)
    text = out.read_text()
    assert run.returncode == 0, text
    assert text.count("nodes that take part: hospital-a (client 0), hospital-b (client 1)") == 2
    assert text.count("2 clients took part") == 5
    assert digest_of(site.folder / "runs" / "hearts") in text
    status = site.do(["federation", "status", "server"])
    assert re.search(r"hearts +finished completed +5 rounds", status), status
    assert not any(file.stat().st_mode & 0o077 for file in (site.folder / "runs" / "hearts").rglob("*"))
    comes_back(site, second, told)
    site.running.remove(second_node)
    second_node.send_signal(signal.SIGTERM)
    second_node.wait(60)
    guesses_the_next_orders(site, port)
    wait_for(lambda: "hospital-b announced an object of the server with wrong parts" in said.read_text(), 10)


def comes_back(site, register, told):
    """A node that was removed is refused, and joins by itself when it is registered again with the same key."""
    site.do(["federation", "unregister", "server", "hospital-b"])
    assert "hospital-b" not in site.do(["federation", "nodes", "server"])
    wait_for(lambda: "does not know this node's key" in told.read_text(), 60)
    assert "hospital-b: registered for clients 1" in site.do(register)
    wait_for(lambda: "node hospital-b runs again" in told.read_text(), 180)
    assert re.search("hospital-b +1 +connected", site.do(["federation", "nodes", "server"]))


def guesses_the_next_orders(site, port):
    """A hostile hospital announces the objects of the next orders with wrong parts: the run goes on without it.

    The run is long enough for the hospital to be asked again, two deadlines after its first reply.
    """
    words = ["hospital-b/node.key", f"127.0.0.1:{port}", "ca.crt", "600"]
    attacker = subprocess.Popen(
        [sys.executable, "-m", "tests.federation.attacks", *words], cwd=site.folder, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
    )  # fmt: skip
    try:
        assert attacker.stdout.readline() == "connected\n"
        site.do(["federation", "run", "server", "long-app", "--out", "runs/attacked", "-c", "deadline=6"])
    finally:
        attacker.kill()
    assert "poisoned after round 1\n" in attacker.communicate()[0]
    number = Registry(site.folder / "server").nodes()["hospital-b"].id
    for what in (
        "confirm-message-received ignored: it has not pulled all objects of this message",
        "push-messages refused: it sent the server's message as its reply",
        "push-messages refused: it sent a time of nan seconds",
        "push-messages refused: it sent a message that is no reply, as only the server may",
    ):
        assert f"hospital-b: /v1/fleet/{what}" in (site.folder / "server" / "proxy.log").read_text()
    log = ServerFolder(site.folder / "server").log.read_text()
    assert f"node_id={number} announced an object of the server with wrong parts" in log
    events = (site.folder / "runs" / "attacked" / "events.jsonl").read_text()
    assert "the reply cannot be read: DataError: its arrays are larger than its clients' updates can be" in events


def lock_the_database(server):
    """A database that is locked for longer than Flower waits for it, as by a flood of replies, ends no process."""
    with closing(sqlite3.connect(server.path / "superlink.db", timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        wait_for(lambda: re.search(r'POST /v1/runtime/[a-z-]+ HTTP/1.1" 50', server.log.read_text()), 60)
        database.execute("ROLLBACK")
    assert re.search(r'POST /v1/runtime/[a-z-]+ HTTP/1.1" 503', server.log.read_text())
    assert "superexec ended" not in server.app_log.read_text()


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def attack(site, port):
    """Calls that a registered hospital could make while a run goes on."""
    server, node = ServerFolder(site.folder / "server"), NodeFolder(site.folder / "hospital-b")
    number = Registry(server.path).nodes()["hospital-b"].id
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=str(server.ca)), trust_env=False
    ) as door:
        for path in ("/v1/control/start-run", "/v1/control/list-nodes", "/v1/runtime/acquire-task"):
            assert door.post(path, headers=sign(node)).status_code == 403
        flood = reply_of(number, objects=20_000)
        assert door.post("/v1/fleet/push-messages", content=flood, headers=sign(node)).status_code == 413
        place = ("127.0.0.1", port)
        many = [socket.create_connection(place, source_address=("127.0.0.2", 0)) for _ in range(PER_ADDRESS + 20)]
        assert door.post(HELLO, headers=sign(node)).status_code == 200
        for connection in many:
            connection.close()
        assert "an unknown sender at 127.0.0.2: connections beyond 400 are closed" in server.proxy_log.read_text()
    assert "hospital-b: /v1/control/start-run refused" in server.proxy_log.read_text()
    too_large = "the request has more than the allowed 1048576 bytes"
    assert f"hospital-b: /v1/fleet/push-messages refused: {too_large}" in server.proxy_log.read_text()
    with httpx.Client(
        base_url=f"https://{server.control()}",
        verify=ssl.create_default_context(cafile=str(server.ca)),
        trust_env=False,
    ) as inside:
        for path in ("/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/acquire-task"):
            answer = inside.post(path, headers={"content-type": "application/protobuf"})
            assert answer.status_code in (401, 403), (path, answer.status_code, answer.text)
        wrong = {"authorization": "Bearer wrong", "content-type": "application/protobuf"}
        assert inside.post("/v1/control/list-nodes", headers=wrong).status_code == 401
