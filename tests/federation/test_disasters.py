"""A server and two nodes, as on three machines: every process is killed, and every disk is full for a while."""

import re
import shlex
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedgbo.federation.monitor import digest_of, simulated
from fedgbo.federation.network import free_ports
from fedgbo.federation.processes import process_tree
from tests.cli.test_processes import wait_for
from tests.federation.test_hospitals import Site, command_line

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
ROOT = [] if subprocess.run(["id", "-u"], capture_output=True, text=True).stdout == "0\n" else ["sudo", "-n"]
EVERYBODY = ["-c", "quorum=1.0", "-c", "attempts=9", "-c", "deadline=90", "-c", "wait=240"]


class Disk:
    """A small file system."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        subprocess.run([*ROOT, "mount", "-t", "tmpfs", "-o", "size=24m,mode=777", "fedgbo", path], check=True)

    def fill(self):
        """Leave no space, not even in the last blocks of files."""
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)

    def free(self):
        (self.path / "filler").unlink()

    def unmount(self):
        subprocess.run([*ROOT, "umount", "-l", self.path], check=True)


class Machines(Site):
    """A server, two nodes and the runs, each with a disk of its own."""

    def __init__(self, folder, task):
        super().__init__(folder)
        self.disks = {name: Disk(folder / name) for name in ("server", "a", "b", "runs")}
        self.port = free_ports(1)[0]
        self.do(["federation", "certs", str(folder / "server" / "s")])
        _, self.said = served = self.start("serve", ["federation", "serve", "server/s", "--port", str(self.port)])
        new = ["federation", "new", str(folder / "app"), "--task", str(task), "--algorithm", "scaffold", "lr=0.1"]
        self.do([*new, "local_steps=1", "eval_every=1", "--rounds", "7"])
        self.hear(served, "serving nodes at")
        self.nodes = {}
        for number, name in enumerate("ab"):
            node = folder / name / name
            self.do(["federation", "key", str(node)])
            key = str(node / f"{name}.pub")
            self.do(["federation", "register", str(folder / "server" / "s"), key, "--clients", f"{number}::2"])
            words = ["federation", "join", f"127.0.0.1:{self.port}", "--node", str(node), "--ca", "server/s/ca.crt"]
            words += ["--any-app", "-c", f"state-folder={node / 'states'}"]
            self.nodes[name] = self.start(name, words)

    def run(self, name, resume=False):
        """Begin a run, or resume it; return its process and its output file."""
        words = ["federation", "run", "server/s", "app", "--resume" if resume else "--out", f"runs/{name}", *EVERYBODY]
        return self.start(f"run-{name}-{resume}", words)

    def process(self, top, *words):
        """The process of one of Flower's commands below another, by its command line or name."""
        for mark in process_tree([top.pid]):
            told = command_line(mark.pid) + Path(f"/proc/{mark.pid}/comm").read_text()
            if any(word in told for word in words):
                return mark
        raise AssertionError(f"no {words}")


@pytest.fixture(scope="module")
def machines(tmp_path_factory, task_file):
    place = Machines(tmp_path_factory.mktemp("machines"), f"{task_file}:everyone")
    yield place
    place.end()
    for disk in place.disks.values():
        disk.unmount()


def in_round(number, run, out):
    """Wait until a round has begun."""
    wait_for(lambda: f"round {number}: " in out.read_text() or run.poll() is not None, 400)
    assert run.poll() is None, out.read_text()


def finished(machines, name, run, out):
    wait_for(lambda: run.poll() is not None, 400)
    machines.running.remove(run)
    assert run.returncode == 0, out.read_text()
    folder = machines.folder / "runs" / name
    assert digest_of(folder) == simulated(folder)


def resumed(machines, name, run, out):
    """Wait until a run ended with an error; resume it as the error says."""
    wait_for(lambda: run.poll() is not None, 200)
    machines.running.remove(run)
    assert run.returncode == 7, out.read_text()
    (again,) = re.findall(r"resume with: fedgbo (.*)", out.read_text())
    assert shlex.split(again)[-len(EVERYBODY) - 2] == "--resume"
    return machines.run(name, resume=True)


def test_every_process_is_killed_in_turn(machines):
    server = machines.running[0]
    node, told = machines.nodes["a"]
    run, out = machines.run("killed")
    in_round(2, run, out)
    machines.process(server, "federation.proxy").signal(signal.SIGKILL)
    in_round(3, run, out)
    machines.process(node, "flwr-clientapp").signal(signal.SIGKILL)
    in_round(4, run, out)
    machines.process(server, "launch.py\0superlink").signal(signal.SIGKILL)
    in_round(5, run, out)
    machines.process(node, "launch.py\0supernode").signal(signal.SIGKILL)
    in_round(6, run, out)
    machines.process(server, "flwr-serverapp").signal(signal.SIGKILL)
    run, out = resumed(machines, "killed", run, out)
    in_round(7, run, out)
    machines.process(server, "launch.py\0superexec").signal(signal.SIGKILL)
    run, out = resumed(machines, "killed", run, out)
    finished(machines, "killed", run, out)
    assert "the proxy runs again" in machines.said.read_text()
    assert "the SuperLink runs again" in machines.said.read_text()
    assert "node a runs again" in told.read_text()


def test_every_disk_is_full_for_a_while(machines):
    run, out = machines.run("full")
    in_round(2, run, out)
    machines.disks["a"].fill()
    wait_for(lambda: re.search("dropped|rejected", out.read_text()) or run.poll() is not None, 200)
    machines.disks["a"].free()
    in_round(4, run, out)
    machines.disks["server"].fill()
    time.sleep(8.0)  # nothing can be said of it: the proxy's log is on that disk
    machines.disks["server"].free()
    wait_for(lambda: "round 6:" in out.read_text() or run.poll() is not None, 200)
    if run.poll() is not None:  # it goes on, or ends with the command that resumes it
        run, out = resumed(machines, "full", run, out)
        in_round(6, run, out)
    machines.disks["runs"].fill()
    wait_for(lambda: run.poll() is not None, 200)
    machines.disks["runs"].free()
    run, out = resumed(machines, "full", run, out)
    finished(machines, "full", run, out)


def test_nothing_grows_with_the_rounds(machines):
    run, out = machines.run("long")
    in_round(3, run, out)
    early = sizes(machines)
    in_round(7, run, out)
    late = sizes(machines)
    finished(machines, "long", run, out)
    assert late.keys() == early.keys()
    for name, (megabytes, handles, threads) in late.items():
        assert megabytes < early[name][0] + 12, name
        assert handles < early[name][1] + 12, name  # the SuperLink's vary with the calls at that moment
        assert threads < early[name][2] + 12, name
    database = sqlite3.connect(f"file:{machines.folder}/server/s/superlink.db?mode=ro", uri=True)
    for table in ("message_ins", "message_res", "objects", "run_objects"):
        assert database.execute(f"select count(*) from {table}").fetchone() == (0,), table


def sizes(machines):
    """Memory in MB, open files and threads of each process that stays, by its number and name."""
    found = {}
    for top in machines.running:
        for mark in process_tree([top.pid]):
            place = Path(f"/proc/{mark.pid}")
            pages = int((place / "statm").read_text().split()[1])
            counts = [len(list((place / name).iterdir())) for name in ("fd", "task")]
            found[mark.pid, (place / "comm").read_text().strip()] = pages * 4096 / 2**20, *counts
    return found
