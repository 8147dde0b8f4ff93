"""A node's processes on its own machine."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from fedgbo.federation.credentials import make_node
from fedgbo.federation.network import LOOPBACK, Address
from fedgbo.federation.processes import Process
from fedgbo.federation.supernode import start_node


def test_another_user_who_takes_a_nodes_port_cannot_give_it_work(tmp_path, monkeypatch):
    """The process of the apps would run what it is given, even the code of an app if the node runs any."""
    commands, heard = [], []

    def start(name, command, environment, log):
        commands.append((command, environment))
        return SimpleNamespace()

    class Impostor(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(self.path)
            self.send_error(503)

    monkeypatch.setattr(Process, "start", start)
    start_node(make_node(tmp_path / "a"), Address(LOOPBACK, 1), tmp_path / "ca.crt", {}, any_app=True)
    tasks, environment = commands[1]
    port = int(tasks[tasks.index("--runtime-api-address") + 1].rpartition(":")[2])
    with HTTPServer((LOOPBACK, port), Impostor) as impostor:
        threading.Thread(target=impostor.serve_forever, daemon=True).start()
        try:
            ended = subprocess.run(tasks, env=environment, timeout=60, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it asked for work: {heard}")
        finally:
            impostor.shutdown()
    assert (ended.returncode, heard) == (1, [])
