"""Messages handed to a process that has everything loaded, or to Flower's own command where none waits."""

import json
import os
import signal
import subprocess
import sys

import pytest

from fedgbo.core.errors import MissingExtraError
from fedgbo.federation import credentials
from fedgbo.federation.credentials import make_certificates
from fedgbo.federation.processes import flower_environment, process_tree
from fedgbo.federation.warm import COMMAND, PIPE, warm_environment
from tests.cli.test_processes import wait_for


@pytest.fixture
def folder(tmp_path):
    """A folder with a space in its name, whose command falls back to one that only tells its arguments."""
    real = tmp_path / "real"
    real.mkdir()
    (real / COMMAND).write_text('#!/bin/sh\necho "itself: $*"\n')
    (real / COMMAND).chmod(0o700)
    place = tmp_path / "a node" / "warm"
    environment = warm_environment(place, {"PATH": f"{real}:{os.environ['PATH']}"})
    assert environment["PATH"].startswith(f"{place}:")
    return place


def call(folder, *args):
    return subprocess.run([folder / COMMAND, *args], capture_output=True, text=True, check=True).stdout


def test_arguments_go_into_the_pipe_where_somebody_waits(folder):
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / PIPE).stat().st_mode & 0o777 == 0o600
    handle = os.open(folder / PIPE, os.O_RDWR)
    assert call(folder, "--token", "a b'c") == ""
    assert json.loads(os.read(handle, 4096)) == ["--token", "a b'c"]
    os.close(handle)


def test_flowers_own_command_runs_where_nobody_waits(folder):
    assert call(folder, "--token", "x") == "itself: --token x\n"


def test_a_fork_ends_with_the_process_that_waits(folder):
    """As when the node's command is killed, which ends the process that waits, while a client trains."""
    program = "import pathlib, sys, time; from fedgbo.federation import warm; "
    program += "warm._answer = lambda words: [print(__import__('os').getpid(), flush=True), time.sleep(600)]; "
    program += "warm.wait_at(pathlib.Path(sys.argv[1]))"
    handle = os.open(folder / PIPE, os.O_RDWR)
    os.write(handle, b"[]\n")
    waiting = subprocess.Popen([sys.executable, "-c", program, folder / PIPE], stdout=subprocess.PIPE, text=True)
    try:
        (fork,) = process_tree([int(waiting.stdout.readline())])
        assert fork.alive
        waiting.send_signal(signal.SIGKILL)
        wait_for(lambda: not fork.alive, 10)
    finally:
        waiting.kill()
        waiting.communicate()
        os.close(handle)


def test_nothing_is_sent_installed_or_taken_from_the_users_flower(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/home/me/.flwr")
    monkeypatch.setenv("FLWR_LICENSE_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "intra.example.org")
    found = flower_environment(tmp_path / "home")
    assert {key: value for key, value in found.items() if key.startswith("FLWR_")} == {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "FLWR_HOME": str(tmp_path / "home"),
    }
    assert found["no_proxy"] == found["NO_PROXY"] == "intra.example.org,localhost,127.0.0.1,::1"
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_without_flower_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgbo\[flower\]'"):
        make_certificates(tmp_path / "server")
    assert not (tmp_path / "server").exists()
