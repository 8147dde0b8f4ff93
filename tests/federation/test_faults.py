"""Nodes that die, lie or dawdle; servers that are killed: real processes and real signals."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgbo.cli.federation_view import sentence
from fedgbo.federation.local import LocalFolder, prepare, running
from fedgbo.federation.monitor import digest_of
from fedgbo.federation.processes import process_tree
from tests.cli.test_processes import wait_for
from tests.federation.conftest import Federation, resolved

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
MOODS = ["", "nan", "slow", "slow"]  # of nodes 0 to 3; the last one is killed while it dawdles


def test_one_killed_one_lying_one_dawdling(task_file, tmp_path):
    config = resolved(
        f"{task_file}:moody", "fedgbo", optimiser="sgdm", lr=0.1, beta=0.9, rounds=2, local_steps=1, eval_every=1
    )
    folder = prepare(tmp_path / "fed", config, nodes=4, options={})
    with running(folder, print, lambda number: {"clients": str(number), "mood": MOODS[number]}) as live:
        victim = live.nodes[3]

        def show(event):
            if event.kind == "round" and victim.alive:
                wait_for(lambda: "ROUND 1" in victim.output(), 60)  # it has the work
                for one in process_tree([victim.popen.pid, victim.helpers[0].popen.pid]):
                    one.signal(signal.SIGKILL)

        ending, events, run = Federation(folder, live, tmp_path).run("run", config, show, deadline=25.0, quorum=0.25)
        marks = process_tree(process.popen.pid for process in live.processes)
    assert ending.completed, ending.reason
    assert ending.digest == digest_of(run)
    told = {
        (event.kind, event["client"]): event["reason"]
        for event in events
        if event.kind in ("rejected", "dropped") and event["round"] == 1
    }
    assert set(told) == {("rejected", 1), ("dropped", 2), ("dropped", 3)}
    assert "NaN" in told["rejected", 1]
    assert "no reply within 25 s" in told["dropped", 2]
    assert [event["took_part"] for event in events if event.kind == "done_round"] == [[0], [0]]
    lines = " ".join(filter(None, map(sentence, events)))
    for client, name in ((1, "node-1"), (2, "node-2"), (3, "node-3")):
        assert f"client {client} ({name})" in lines
    assert len(marks) > 8
    assert not any(mark.alive for mark in marks)


def up(*args, cwd):
    command = [sys.executable, "-m", "fedgbo", "federation", "up", *map(str, args)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rounds_done(folder):
    file = folder.run / "events.jsonl"
    return file.read_text().count('"done_round"') if file.exists() else 0


def of_command(marks, *names):
    """Return those processes that run one of Flower's commands, or a fork for one."""

    def told(pid):
        return Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/comm").read_text()

    return [mark for mark in marks if any(name in told(mark.pid) for name in names)]


def test_superlink_and_server_killed_and_resumed_as_printed(task_file, tmp_path):
    settings = ["--algorithm", "fedgbo", "--optimiser", "sgdm", "lr=0.1", "beta=0.9", "local_steps=2", "eval_every=1"]
    folder = LocalFolder(tmp_path / "fed")
    first = up(
        "--task", f"{task_file}:small", *settings, "--rounds", 3, "--nodes", 2, "--out", folder.path, cwd=tmp_path
    )
    try:
        wait_for(lambda: rounds_done(folder) >= 1 or first.poll() is not None, 180)
        marks = process_tree([first.pid])
        for one in of_command(marks, "launch.py\0superlink", "flwr-serverapp"):
            one.signal(signal.SIGKILL)
        out, err = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 7, err
    assert "the SuperLink has exited" in err
    assert str(folder.server.log) in err
    assert str(folder.server.app_log) in err
    assert not any(mark.alive for mark in marks)
    assert rounds_done(folder) < 3

    (again,) = re.findall(r"resume with: (fedgbo .*)", err)
    words = shlex.split(again)
    assert words[:3] == ["fedgbo", "federation", "up"]
    second = up(*words[3:], "--check", cwd=tmp_path)
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    assert "the same, bit for bit" in out
    assert digest_of(folder.run) in out
    assert f"fedgbo run  {digest_of(folder.run)}" in out
    assert "round 3 of 3 done" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(task_file, tmp_path, number):
    folder = LocalFolder(tmp_path / "fed")
    process = up("--task", f"{task_file}:small", "lr=0.1", "beta=0.9", "--nodes", 1, "--out", folder.path, cwd=tmp_path)
    try:
        wait_for(lambda: folder.server.path.joinpath("server.json").exists() or process.poll() is not None, 120)
        time.sleep(1.0)  # the node is on its way
        marks = process_tree([process.pid])
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert len(marks) > 2
    wait_for(lambda: not any(mark.alive for mark in marks), 30)
    if number == signal.SIGINT:
        # Python itself dies of SIGINT if it came while something was exec'd, as imports do; 130 for a shell, too
        assert process.returncode in (130, -signal.SIGINT), err
        assert f"stopped; resume with: fedgbo federation up --resume {folder.path}" in err
    assert not [path for path in folder.path.rglob("*.key") if path.stat().st_mode & 0o077]


def test_a_resumed_federation_needs_one_that_was_begun(tmp_path):
    process = up("--resume", tmp_path / "none", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (2, 4)
    assert "none" in err
