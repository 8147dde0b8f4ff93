"""Run control as an operator types it: a dropped connection, attach, stop, resume, detach, status and the audit."""

import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

from fedgbo.federation.control import bundle
from fedgbo.federation.monitor import digest_of, simulated
from tests.cli.test_processes import wait_for
from tests.federation.test_commands import call

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]


class Terminal:
    """A command in a process of its own; its output goes to a file."""

    def __init__(self, file, *words):
        self.file = file
        with file.open("w") as target:
            command = [sys.executable, "-m", "fedgbo", "federation", *map(str, words)]
            self.process = subprocess.Popen(command, stdout=target, stderr=target, start_new_session=True)

    def until(self, text):
        wait_for(lambda: text in self.file.read_text() or self.process.poll() is not None, 180)
        assert text in self.file.read_text(), self.file.read_text()

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)


def test_a_run_is_left_followed_stopped_and_resumed(federation, task_file, tmp_path):
    server, app, run = federation.folder.server.path, tmp_path / "app", tmp_path / "hearts"
    settings = ["--algorithm", "fedgbo", "--optimiser", "sgdm", "lr=0.1", "beta=0.9", "local_steps=2", "eval_every=1"]
    assert call("new", app, "--task", f"{task_file}:small", *settings, "--rounds", 15).exit_code == 0

    first = Terminal(tmp_path / "first", "run", server, app, "--out", run, "-c", "deadline=60")
    first.until("round 1 of 15 done")
    assert first.end(signal.SIGHUP) == 129  # what a dropped ssh connection does
    assert "the terminal was closed; the run continues" in first.file.read_text()

    second = Terminal(tmp_path / "second", "attach", server)
    second.until("round 2 of 15 done")
    assert second.end(signal.SIGINT) == 0
    assert "round 1 of 15 done" in second.file.read_text()  # from the first event on
    assert second.file.read_text().endswith("detached; the run continues\n")

    assert re.search(r"hearts +running +\d+ rounds", call("status", server).stdout)
    stopped = call("stop", server)
    assert stopped.stdout == "hearts: stopped\n", stopped.stderr
    assert re.search(r"hearts +finished stopped +\d+ rounds", call("status", server).stdout)
    assert "0 runs are active; name one (running: none)" in call("stop", server).stderr
    assert "no run lungs is active; name one (running: none)" in call("stop", server, "lungs").stderr
    *_, last = (json.loads(line) for line in (run / "events.jsonl").read_text().splitlines())
    assert (last["kind"], last["reason"]) == ("stopped", "it was stopped by a signal or by an operator")

    (again,) = re.findall(r"resume with: fedgbo federation (.*)", stopped.stderr)
    assert shlex.split(again)[-2:] == ["-c", "deadline=60"]
    detached = call(*shlex.split(again), "--detach")
    assert detached.exit_code == 0, detached.stderr
    assert detached.stdout == f"{run}\n"
    (follow,) = re.findall(r"follow it with: fedgbo federation (.*)", detached.stderr)
    for _ in range(2):  # while it runs, and when it is over
        followed = call(*shlex.split(follow))
        assert followed.exit_code == 0, followed.stderr
        assert "round 15 of 15 done" in followed.stderr
        assert digest_of(run) in followed.stdout
    assert digest_of(run) == simulated(run)
    assert "no run lungs is known" in call("attach", server, "lungs").stderr

    log = federation.folder.server.app_log.read_text()
    assert re.search(r"INFO \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: done_round \{\"round\": 15", log)
    started = [entry for entry in federation.folder.server.audited("start") if entry["app"] == str(app)]
    assert [entry["app_sha256"] for entry in started] == [bundle(app)[1]] * 2
    assert all(entry["user"] and entry["time"] and entry["options"]["deadline"] == 60 for entry in started)
    assert federation.folder.server.audited("stop")[-1]["run"] == started[0]["run"]
