"""Real processes: trees of them in sessions of their own, deaf to signals, orphaned by a kill."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from fedgbo.core.errors import FederationError
from fedgbo.federation.credentials import user_name
from fedgbo.federation.guard import Door
from fedgbo.federation.local import Running
from fedgbo.federation.network import free_ports
from fedgbo.federation.processes import Process, Service, Tail, attend, process_tree, rotate, stop
from tests.cli.test_processes import wait_for

FAMILY = """
import subprocess, sys, time, signal
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
depth = int(sys.argv[1])
if depth:
    subprocess.Popen([sys.executable, __file__, str(depth - 1), *sys.argv[2:]], start_new_session=True)
print("\\x1b[92mready\\x1b[0m", depth, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family(tmp_path):
    """Start a process, its child and its grandchild, each in its own session."""
    file = tmp_path / "family.py"
    file.write_text(textwrap.dedent(FAMILY))

    def start(*words):
        process = Process.start("family", [sys.executable, str(file), "2", *words], os.environ, tmp_path / "log")
        process.wait_for(lambda: process.output().count("ready") == 3, 30, "all three")
        return process

    return start


@pytest.mark.parametrize("words", [[], ["deaf"]])
def test_the_whole_family_ends(family, words):
    process = family(*words)
    marks = process_tree([process.popen.pid])
    assert len(marks) == 3
    stop([process], seconds=0.5)
    assert not any(mark.alive for mark in marks)
    assert not process.alive
    stop([process])  # ended already: nothing happens


def test_a_signal_that_comes_while_processes_are_stopped_is_not_lost(family):
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        deaf = family("deaf")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop([deaf], seconds=1)
        assert got == [signal.SIGTERM]
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:  # the stop is the answer to a first signal: a second one changes nothing
            deaf = family("deaf")
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            stop([deaf], seconds=1)
        assert got == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_logs_are_private_kept_and_without_colours(family):
    first = family()
    stop([first], seconds=0.5)
    second = family()
    stop([second], seconds=0.5)
    assert second.log.stat().st_mode & 0o777 == 0o600
    assert second.output().count("ready 2\n") == 1
    assert second.log.read_text().count("ready") == 6


def test_what_ends_too_early_or_never_comes(tmp_path):
    process = Process.start("it", [sys.executable, "-c", "print('no luck')"], os.environ, tmp_path / "log")
    with pytest.raises(
        FederationError, match=r"it ended before the sun; exit code 0, last line of output: no luck; log: .*log"
    ):
        process.wait_for(lambda: False, 30, "the sun")
    process = Process.start("it", [sys.executable, "-c", "input()"], os.environ, tmp_path / "log2")
    waiting = Process.start("it", ["sleep", "600"], os.environ, tmp_path / "log3")
    with pytest.raises(FederationError, match="no sign of the sun within 0 s"):
        waiting.wait_for(lambda: False, 0.1, "the sun")
    stop([process, waiting])


def test_processes_end_with_a_killed_parent(tmp_path):
    program = f"""
import os, sys, time
from pathlib import Path
from fedgbo.federation.processes import Process
print(Process.start("it", ["sleep", "600"], os.environ, Path({str(tmp_path / "log")!r})).popen.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    (mark,) = process_tree([int(parent.stdout.readline())])
    assert mark.alive
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not mark.alive, 20)


def test_a_stranger_with_the_number_of_one_that_ended_is_left_alone(tmp_path):
    ended = Process.start("it", ["true"], os.environ, tmp_path / "log")
    ended.popen.wait()
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        ended.popen.pid = stranger.pid
        stop([ended])
        time.sleep(0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_orphans_of_one_that_ended_go_with_it(tmp_path):
    process = Process.start("it", ["sh", "-c", "sleep 600 & echo $!"], os.environ, tmp_path / "log")
    process.popen.wait()
    (orphan,) = process_tree([int(process.output())])
    assert orphan.alive
    stop([process])
    wait_for(lambda: not orphan.alive, 10)


def test_a_number_given_out_again_is_another_process():
    child = subprocess.Popen(["sleep", "600"])
    (mark,) = process_tree([child.pid])
    assert mark.alive
    other = type(mark)(mark.pid, mark.started + 1)
    assert not other.alive
    other.signal(signal.SIGKILL)
    time.sleep(0.1)
    assert child.poll() is None
    mark.signal(signal.SIGKILL)
    child.wait()
    assert not mark.alive


def test_a_process_that_ended_is_started_again_and_finally_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.federation.processes.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("fedgbo.federation.processes.LONGEST_PAUSE", 0.01)
    starts, told = [], []

    def start():
        starts.append(1)
        return Process.start("it", ["sleep", "600" if len(starts) == 2 else "0"], os.environ, tmp_path / "log")

    service = Service(start)
    wait_for(lambda: attend([service], told.append) or len(starts) == 2, 20)
    assert "it ended (exit code 0" in told[0]
    assert told[1] == "it runs again"
    attend([service], told.append)
    assert len(starts) == 2
    service.process.popen.kill()
    with pytest.raises(FederationError, match="it ended 10 times in a row; "):
        wait_for(lambda: attend([service], told.append) or False, 60)


def test_a_process_whose_helper_died_is_started_again_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.federation.processes.FIRST_PAUSE", 0.01)

    def start():
        process = Process.start("it", ["sleep", "600"], os.environ, tmp_path / "log")
        process.helpers = [Process.start("its helper", ["sleep", "600"], os.environ, tmp_path / "log")]
        return process

    service, told = Service(start), []
    first = service.process
    first.helpers[0].popen.kill()
    wait_for(lambda: attend([service], told.append) or service.process is not first, 30)
    assert "its helper ended (killed by SIGKILL" in told[0]
    assert not first.alive
    stop([service.process])


def test_a_log_that_was_rotated_is_read_on(tmp_path):
    tail = Tail(tmp_path / "log")
    (tmp_path / "log").write_text("first line\n")
    assert tail.lines() == ["first line"]
    (tmp_path / "log").write_text("new\n")
    assert tail.lines() == ["new"]


def test_a_full_log_is_moved_while_its_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.federation.processes.LOG_BYTES", 100)
    monkeypatch.setattr("fedgbo.federation.processes.LOG_FILES", 2)
    program = "import sys\nfor line in sys.stdin: print(line * 20, end='', flush=True)"
    log = tmp_path / "log"
    with log.open("ab") as target:
        writer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=target, text=True)
    for text in ("first\n", "second\n", "third\n"):
        writer.stdin.write(text)
        writer.stdin.flush()
        wait_for(lambda text=text: log.read_text() == text * 20, 20)
        rotate(log)
    writer.communicate()
    assert {file.name: file.read_text()[:5] for file in tmp_path.iterdir()} == {
        "log": "",
        "log.1": "third",
        "log.2": "secon",
    }
    assert (tmp_path / "log.1").stat().st_mode & 0o777 == 0o600


def test_what_a_dead_node_leaves_behind_is_stopped(tmp_path):
    node, helper = (
        Process.start(name, [sys.executable, "-c", "import time; time.sleep(600)"], os.environ, tmp_path / name)
        for name in ("node", "helper")
    )
    node.helpers = [helper]
    running = Running(tmp_path, [], [node])
    assert running.lost() == []
    node.popen.kill()
    node.popen.wait()
    assert running.lost() == [node]
    assert not helper.alive  # another user could take the node's port, and give it work
    assert running.lost() == []


def test_the_user_is_not_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("LOGNAME", "alice@hq")
    assert user_name() == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_door_closes_connections_beyond_its_numbers():
    said, port = [], free_ports(1)[0]
    with Door("127.0.0.1", port, most=3, per_address=2, tell=said.append) as door:
        door.listen()

        def come(address):
            guest = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            try:
                return guest, door.accept()[0]
            except ConnectionAbortedError:
                assert guest.recv(1) == b""
                return guest, None

        first, second, third, fourth = (come(address) for address in ("127.0.0.2",) * 3 + ("127.0.0.3",))
        assert third[1] is None
        assert said == ["an unknown sender at 127.0.0.2: connections beyond 2 are closed"]
        assert come("127.0.0.4")[1] is None  # three in all
        for here in (first, second, fourth):
            here[1].close()
            here[1].close()  # counts once
        assert not door.open
        assert come("127.0.0.2")[1] is not None
