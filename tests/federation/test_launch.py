"""Flower's processes as we run them: forks for tasks, and the environment that they get."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedgbo.core.errors import MissingExtraError
from fedgbo.federation import apps, credentials, launch
from fedgbo.federation.credentials import make_certificates
from fedgbo.federation.processes import flower_environment, process_tree
from tests.cli.test_processes import wait_for


def task(command="flwr-serverapp", app="one"):
    return SimpleNamespace(
        task_type=command,
        runtime_api_address="127.0.0.1:1",
        token="secret",
        insecure=True,
        root_certificates_path=None,
        fab_hash=app,
    )


@pytest.fixture
def forks(monkeypatch, tmp_path):
    """An executor whose forks write a line for each task, and sleep at a server's, instead of running Flower."""

    def do(channel, command, parent, allowed):
        while True:
            words = channel.recv()
            slow = (tmp_path / "slow").exists()  # before the line, after which a test removes that file
            with (tmp_path / "done").open("a") as file:
                file.write(f"{os.getpid()} {words[0]}\n")
            time.sleep(600 if slow or "server" in command else 0)
            channel.send(True)

    monkeypatch.setattr(launch, "do_tasks", do)
    executor = launch.ForkExecutor(launch.CLIENT)
    executor.done = lambda: [line.split()[0] for line in (tmp_path / "done").read_text().splitlines()]
    executor.slow = tmp_path / "slow"
    (tmp_path / "done").touch()
    yield executor
    for fork in executor._forks:
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)


def test_a_task_runs_in_a_fork_whose_token_is_on_no_command_line(forks):
    forks._command = launch.SERVER
    forks.launch(task())
    (fork,) = forks._forks
    wait_for(lambda: Path(f"/proc/{fork.pid}/comm").read_text() == "flwr-serverapp\n", 10)
    assert "secret" not in Path(f"/proc/{fork.pid}/cmdline").read_text()


def test_a_node_does_no_tasks_of_a_server(forks):
    assert forks.get_eligible_capacity({"flwr-clientapp", "flwr-serverapp"}) == ({"flwr-clientapp"}, set())
    assert forks.launch(task()).status == "failed"
    assert forks._forks == []


def test_the_tasks_of_a_nodes_app_share_a_fork_and_another_app_gets_its_own(forks):
    for _ in range(3):
        forks.launch(task("flwr-clientapp"))
    (fork,) = forks._forks
    wait_for(lambda: forks.reconcile() or not fork.tasks, 10)
    assert forks.done() == [str(fork.pid)] * 3
    forks.launch(task("flwr-clientapp", app="two"))
    wait_for(lambda: len(forks.done()) == 4, 10)
    assert forks.done()[3] != str(fork.pid)
    wait_for(lambda: forks.reconcile() or len(forks._forks) == 1, 10)  # the first app's has ended
    assert forks._forks[0].app == "two"


def test_an_idle_fork_ends(forks, monkeypatch):
    monkeypatch.setattr(apps, "IDLE_SECONDS", 0.0)
    forks.launch(task("flwr-clientapp"))
    wait_for(lambda: forks.reconcile() or not forks._forks, 10)
    assert len(forks.done()) == 1


def test_a_fork_that_is_stuck_is_replaced_when_the_next_task_comes(forks, monkeypatch):
    monkeypatch.setattr(apps, "STUCK_SECONDS", 0.2)
    forks.slow.touch()
    forks.launch(task("flwr-clientapp"))
    wait_for(lambda: forks.done(), 10)
    forks.slow.unlink()
    forks.launch(task("flwr-clientapp"))
    wait_for(lambda: forks.reconcile() or len(forks.done()) == 2, 10)
    assert len(set(forks.done())) == 2


def test_forks_that_ended_are_reaped(forks):
    forks._command = launch.SERVER
    forks.launch(task())
    (fork,) = forks._forks
    (mark,) = process_tree([fork.pid])
    os.kill(fork.pid, signal.SIGKILL)
    wait_for(lambda: not mark.alive, 10)
    forks.reconcile()
    assert not forks._forks


@pytest.mark.parametrize("busy", [True, False])
def test_a_client_app_killed_at_a_task_ends_the_process_that_forked_it(forks, monkeypatch, busy):
    codes = []
    monkeypatch.setattr(launch.os, "_exit", codes.append)
    if busy:
        forks.slow.touch()
    forks.launch(task("flwr-clientapp"))
    (fork,) = forks._forks
    wait_for(lambda: forks.reconcile() or (forks.done() and bool(fork.tasks) == busy), 10)
    (mark,) = process_tree([fork.pid])
    os.kill(fork.pid, signal.SIGKILL)
    wait_for(lambda: not mark.alive, 10)
    forks.slow.unlink(missing_ok=True)
    forks.reconcile()
    assert codes == ([1] if busy else [])
    forks.launch(task("flwr-clientapp"))  # an idle one is replaced
    wait_for(lambda: len(forks.done()) == 2, 10)


def test_a_version_of_flower_that_moved_its_parts_is_named():
    with pytest.raises(SystemExit, match=r"has no flwr\.common\.constant\.nothing; install flwr 1\.41 or 1\.42"):
        launch._replace("flwr.common.constant", nothing=1)


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
