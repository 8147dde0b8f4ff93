"""Full disks, removed folders, closed terminals, Ctrl-C at any time: a message, the right exit code, no traceback."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgbo.cli import options
from fedgbo.cli.init import FILES
from fedgbo.cli.main import app
from fedgbo.core import RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.runs.folder import RunFolder
from tests.data.privileges import drop

COMMAND = [sys.executable, "-c", "import fedgbo_command; fedgbo_command.main()"]
SMALL = ("--lr", "0.1", "--beta", "0.9", "--quiet", "--eval-every", "1")


def call(*args):
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB; None where none can be mounted: the tests then use /dev/full."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    yield place if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_stops_a_run_that_goes_on_when_there_is_room(small_disk, my_file, tmp_path, monkeypatch):
    args = ("run", "--task", f"{my_file}:small", *SMALL, "--rounds", 6, "--json", "--out")
    whole = json.loads(call(*args, tmp_path / "whole").stdout)
    out = (small_disk or tmp_path) / "run"
    fill_up(small_disk, out, monkeypatch)
    stopped = call(*args, out)
    assert stopped.exit_code == 4
    assert "No space left on device; free some space, then resume the run (fedgbo resume" in stopped.stderr
    assert not list(out.rglob(".*")), "no half-written file stays"
    monkeypatch.undo()
    if small_disk:
        (small_disk / "filler").unlink()
    resumed = call("resume", out, "--json")
    assert json.loads(resumed.stdout)["digest"] == whole["digest"]


def fill_up(disk, out, monkeypatch):
    """Fill the disk after the third checkpoint; where none could be mounted, a write to /dev/full stands for it."""
    save, saved = RunFolder.save, []

    def full(self, checkpoint):
        saved.append(checkpoint)
        if len(saved) == 3 and disk:
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        elif len(saved) >= 3 and not disk:
            with self._writing(), Path("/dev/full").open("w") as file:
                file.write("x")
        return save(self, checkpoint)

    monkeypatch.setattr(RunFolder, "save", full)


def test_a_folder_that_is_removed_in_mid_run(my_file, tmp_path, monkeypatch):
    append = RunFolder.append

    def remove(self, record):
        if record.round == 2:
            shutil.rmtree(self.path)
        append(self, record)

    monkeypatch.setattr(RunFolder, "append", remove)
    gone = call("run", "--task", f"{my_file}:small", *SMALL, "--rounds", 4, "--out", tmp_path / "run")
    assert gone.exit_code == 4
    assert f"the folder {tmp_path / 'run'} was removed while the run was writing into it" in gone.stderr


def test_a_full_disk_under_a_comparison(my_file, tmp_path, monkeypatch):
    args = ("--task", f"{my_file}:small", "--lr", 0.1, "--eval-every", 1, "--jobs", 1)
    with monkeypatch.context() as patched:
        fill_up(None, tmp_path / "c", patched)
        done = call("compare", "fedavg", *args, "--rounds", 4, "--seeds", 1, "--out", tmp_path / "c")
    assert done.exit_code == 4
    assert "no run finished: cannot write into" in done.stderr
    fill_up(None, tmp_path / "d", monkeypatch)  # one run ends before the disk is full
    done = call("compare", "fedavg", *args, "--rounds", 1, "--seeds", 3, "--out", tmp_path / "d")
    assert done.exit_code == 4, done.output
    assert "left out: fedavg" in done.stderr
    assert "the finished runs are kept; to resume the others" in done.stderr


def test_a_full_disk_under_an_experiment(my_file, tmp_path, monkeypatch):
    file = tmp_path / "e.toml"
    file.write_text(
        'title = "e"\npreset = "none"\nalgorithms = "fedavg"\nlr = [0.1, 0.2]\nrounds = 4\nlocal_steps = 2\n'
        f'eval_every = 1\nseeds = [0]\ntasks = "{my_file}:small"\n'
    )
    fill_up(None, tmp_path / "e", monkeypatch)
    done = call("experiment", file, "--jobs", 1, "--out", tmp_path / "e")
    assert done.exit_code == 4
    assert done.stderr.count("failed: ") == 2
    assert "repeat the command to run what failed" in done.stderr


@contextmanager
def largest_file(size):
    """Let writes fail beyond a size, as they do on a full disk; the system then names no file either."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_pages_tables_and_pictures_on_a_full_disk(my_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ("--task", f"{my_file}:small", "--lr", 0.1, "--rounds", 2, "--seeds", 1, "--jobs", 1, "--out", "c")
    assert call("compare", "fedavg", *args).exit_code == 0
    cases = {
        ("compare", "fedavg", *args): {100: "c/table.json", 4096: "c/accuracy.png"},
        ("report", "c", "-o", "r.html"): {100: "r.html"},
        ("report", "c", "--figures", "f"): {100: "f/small-K-10-accuracy-round.png"},
        ("report", "c", "--tensorboard", "t"): {10: "t/small-K-10/fedavg-seed0/events.out.tfevents.fedgbo"},
    }
    for command, files in cases.items():
        for size, file in files.items():
            with largest_file(size):
                done = call(*command)
            assert done.exit_code == 4, done.stderr
            assert f"error: cannot write {file}: File too large; choose another place" in done.stderr
            kept = "the finished runs are kept; when there is room, repeat the command with --out c"
            assert (kept in done.stderr) == (command[0] == "compare")


def test_a_project_on_a_full_disk_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    project = tmp_path / "p"
    with monkeypatch.context() as larger, largest_file(2000):
        larger.setitem(FILES, "README.md", "#" * 3000)  # the last file does not fit
        stopped = call("init", project)
    assert stopped.exit_code == 4
    assert f"cannot write into {project}: File too large" in stopped.output
    assert not list(project.iterdir())
    assert call("init", project).exit_code == 0


def test_output_that_cannot_be_written_is_named():
    """Without root's privileges, /proc and a folder without write permission refuse files."""
    program = (
        "import os, pathlib, tempfile, fedgbo.cli.main as m\n"
        "from typer.testing import CliRunner\n"
        "place = pathlib.Path(tempfile.mkdtemp()); place.chmod(0o500)\n"
        "for args in (['run', '--rounds', '1', '--out', f'{place}/run'], ['init', f'{place}/project'],\n"
        "             ['paper', 'table6', '-o', f'{place}/t.txt'], ['theory', '--figure', f'{place}/t.png'],\n"
        "             ['compare', 'fedavg', '--rounds', '1', '--seeds', '1', '--out', f'{place}/c']):\n"
        "    done = CliRunner().invoke(m.app, args)\n"
        "    print(done.exit_code, 'Permission denied' in done.stderr, 'Traceback' in done.output)\n"
        "place.rmdir()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], preexec_fn=drop, capture_output=True, text=True)
    assert done.stdout.splitlines() == 5 * ["4 True False"], done.stderr


def test_standard_output_that_is_full():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("command", [COMMAND, [sys.executable, "-m", "fedgbo"]], ids=["fedgbo", "python -m fedgbo"])
def test_ctrl_c_during_imports(tmp_path, command):
    """The package is imported for seconds; here torch is replaced by a module that waits."""
    (tmp_path / "torch.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), str(Path(options.__file__).parents[2])])
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    )
    wait_for((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode in (130, -signal.SIGINT)  # 130 for a shell, too


def test_ctrl_c_after_the_imports_of_the_module(my_file, tmp_path):
    """`python -m fedgbo` stops a run as the command does, with a checkpoint."""
    words = ["run", "--task", f"{my_file}:small", "--preset", "none", "--lr", "0.1", "--algorithm", "fedavg"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgbo", *words, "--rounds", "100000", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for((tmp_path / "run" / "metrics.jsonl").exists)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130, stderr
    assert "resume with: fedgbo resume" in stderr


def test_a_file_on_a_read_only_file_system_is_named_as_it_was_asked_for(tmp_path):
    place = tmp_path / "read-only"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], capture_output=True).returncode:
        place.chmod(0o500)  # and without root's privileges
    try:
        with pytest.raises(OSError, match=r"t\.txt") as caught:
            write_atomic(place / "t.txt", b"")
    finally:
        subprocess.run(["umount", "-l", place], capture_output=True)
    assert caught.value.filename == str(place / "t.txt")


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.1, 1.5])
def test_ctrl_c_during_the_real_imports(seconds):
    """numpy and torch turn a KeyboardInterrupt into errors of their own, or lose it."""
    process = subprocess.Popen([*COMMAND, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert process.returncode == 130 or stdout  # a fast machine has made its imports and printed the list by then


def test_a_closed_terminal_ends_a_comparison_without_tracebacks(my_file, tmp_path):
    words = ["compare", "lr=0.1", "fedavg", "fedgbo", "beta=0.9", "--task", f"{my_file}:small", "--rounds", "4000"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--seeds", "1", "--jobs", "2", "--out", "both"], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("both/runs/*/metrics.jsonl"))) == 2 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGHUP)  # as a terminal does, to all of its processes
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 129, said
    assert "Traceback" not in said
    assert "repeat the command with --out both to resume" in said


def test_a_closed_terminal_leaves_a_resumable_run(my_file, tmp_path):
    toml = tmp_path / "slow.toml"
    toml.write_text(
        f'rounds = 400\neval_every = 2\nlr = 0.1\nbeta = 0.9\n[task]\nname = "{my_file}:small"\ndelay = 0.005\n'
    )
    process = subprocess.Popen([*COMMAND, "run", toml, "--out", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("*.safetensors")))
    process.send_signal(signal.SIGHUP)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 129
    assert "stopped; resume with: fedgbo resume run" in stderr
    assert "Traceback" not in stderr
    assert RunFolder(tmp_path / "run").status()["status"] == "interrupted"


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_folders_of_one_second_are_different(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options.time, "strftime", lambda _: "20260101-000000")
    made = [options.new_folder("digits", "my.py:Own") for _ in range(3)]
    assert [path.name for path in made] == [f"digits-Own-20260101-000000{end}" for end in ("", "-2", "-3")]
    (tmp_path / "other").write_text("")
    monkeypatch.chdir(tmp_path / "runs")
    Path("runs").write_text("")
    with pytest.raises(RunFolderError, match="cannot make the folder runs/x-20260101-000000: Not a directory"):
        options.new_folder("x")


def test_a_home_that_cannot_be_written_leaves_nothing_in_the_temporary_folder(my_file, tmp_path):
    room = tmp_path / "temporary"
    room.mkdir()
    env = {**os.environ, "HOME": "/proc/nowhere", "TMPDIR": str(room), "XDG_CACHE_HOME": ""}
    args = ["run", "--task", f"{my_file}:small", "--algorithm", "scaffold", "--lr", "0.1", "--rounds", "2", "--out"]
    done = subprocess.run([*COMMAND, *args, str(tmp_path / "run")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(room.iterdir()) == []


def test_a_run_whose_folder_cannot_be_written_is_not_resumed(my_file, tmp_path):
    words = ("--task", f"{my_file}:small", "--algorithm", "scaffold", "--lr", 0.1)
    assert call("run", *words, "--rounds", 1, "--out", tmp_path / "run").exit_code == 0
    (tmp_path / "run" / "lock").unlink()
    (tmp_path / "run" / "lock").mkdir()  # even root cannot write into it
    refused = call("resume", tmp_path / "run", "--rounds", 2)
    assert refused.exit_code == 4
    assert f"error: cannot write into {tmp_path / 'run'}: Is a directory; check the permissions\n" in refused.stderr
