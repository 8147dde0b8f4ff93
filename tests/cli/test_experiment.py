"""`fedgbo experiment` as real processes: killed, damaged, diverged, shared; what it prints and how it ends."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("experiment")]

TWELVE = """
title = "Twelve runs"
tasks = "digits"
algorithms = ["fedavg", "fedgbo", "mfl"]
optimisers = ["sgdm"]
seeds = 4
rounds = 6
eval_every = 2
local_steps = 1
clients_per_round = 2
test_samples = 50
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "twelve.toml").write_text(TWELVE)
    return folder


def call(place, file, *args, code=0):
    """Call the command in this process; where jobs are more than one, they are processes."""
    args = [str(arg) for arg in args]
    args += [] if "--jobs" in args else ["--jobs", "1"]
    done = CliRunner().invoke(app, ["experiment", str(place / file), *args])
    assert done.exit_code == code, done.output
    return done


def start(place, *args):
    """Start the command in a process of its own."""
    command = [sys.executable, "-m", "fedgbo", "experiment", *map(str, args)]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(place):
    """The folder of an experiment that nobody disturbed."""
    done = call(place, "twelve.toml", "--out", place / "whole")
    assert "twelve: 12 runs (12 missing)" in done.stderr
    assert "[12/12]" in done.stderr
    assert "Twelve runs: digits, K = 1, 6 rounds" in done.stdout
    return place / "whole"


def tables(out, name="twelve"):
    return {kind: (out / f"{name}.{kind}").read_bytes() for kind in ("json", "md", "csv", "tex")} | {
        "curves": (out / f"{name}-curves.csv").read_bytes()
    }


def test_killed_in_the_middle_with_two_jobs_and_started_again(place, whole):
    out = place / "killed"
    process = start(place, "twelve.toml", "--out", out, "--jobs", 2)
    end = time.monotonic() + 120
    while len(list(out.glob("runs/*/status.json"))) < 4:
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ended = {path: json.loads(path.read_text())["status"] for path in out.glob("runs/*/status.json")}
    finished = [path.parent for path, status in ended.items() if status == "finished"]
    assert 4 <= len(finished) < 12

    def written():
        files = [folder / name for folder in finished for name in ("run.json", "status.json", "metrics.jsonl")]
        return [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files]

    before = written()
    again = call(place, "twelve.toml", "--out", out)
    assert f"{len(finished)} finished" in again.stderr
    assert f"/{12 - len(finished)}]" in again.stderr
    assert written() == before
    assert tables(out) == tables(whole)
    assert len(list((out / "runs").iterdir())) == 12


def test_damaged_folders_are_named_set_aside_and_done_anew(place, whole):
    out = place / "damaged"
    shutil.copytree(whole, out)
    one, two, three = sorted((out / "runs").iterdir())[:3]
    (one / "run.json").write_text("garbage")
    metrics = two / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"round": 2', '"round": "2"'))
    for checkpoint in (three / "checkpoints").iterdir():
        checkpoint.write_bytes(b"garbage")
    listed = call(place, "twelve.toml", "--out", out, "--dry-run")
    assert "12 runs (9 finished, 3 would repeat); nothing was run" in listed.stdout
    assert f"damaged: {one}" in listed.stdout
    done = call(place, "twelve.toml", "--out", out)
    for folder in (one, two, three):
        line = f"damaged, set aside as {folder.name}.damaged-1, and started again: "
        assert line in done.stderr
        assert line in done.stdout
        assert folder.with_name(f"{folder.name}.damaged-1").is_dir()
    assert "[3/3]" in done.stderr
    assert tables(out) == tables(whole)


def test_another_experiment_finds_the_runs_again_and_not_those_with_other_settings(place, whole):
    (place / "other.toml").write_text(TWELVE.replace('["fedavg", "fedgbo", "mfl"]', '["fedgbo", "fedavg"]'))
    assert "8 runs (8 finished)" in call(place, "other.toml", "--out", whole, "--dry-run").stdout
    assert "8 runs (8 would run)" in call(place, "other.toml", "local_steps=4", "--out", whole, "--dry-run").stdout
    scaled = call(place, "other.toml", "--scale", 0.5, "--out", whole, "--dry-run").stdout
    assert (
        "Twelve runs; scale 0.5: 3 rounds, 2 seeds, at most 50 test samples; 4 runs (4 would run); nothing was run"
        in scaled
    )


def test_each_task_and_k_has_its_picture_and_its_result(place):
    text = TWELVE.replace(', "mfl"]', "]").replace("seeds = 4", "seeds = 1").replace("steps = 1", "steps = [1, 2]")
    (place / "two.toml").write_text(text)
    done = call(place, "two.toml", "--out", place / "two")
    for steps in (1, 2):
        assert (place / "two" / f"two-digits-K-{steps}-6-rounds.svg").exists()
        assert re.search(
            rf"^digits, K = {steps}, 6 rounds: FedGBO .* FedAvg's best accuracy", done.stdout, re.MULTILINE
        )


def test_divergence_is_an_error_unless_it_is_expected(place):
    text = 'algorithms = "fedavg"\nseeds = 1\nrounds = 2\n[[run]]\nalgorithms = "fedavg"\nlr = 1e30\n'
    (place / "wild.toml").write_text(text)
    done = call(place, "wild.toml", "--out", place / "wild", code=5)
    assert "allow_divergence = true" in done.stderr
    assert "diverged: digits-fedavg-K10-T2-seed0-" in done.stdout
    row = next(row for row in json.loads((place / "wild" / "wild.json").read_text())["rows"] if "1e+30" in str(row))
    assert row["Best accuracy (%)"]["ours"] == "diverged"
    for kind in (".md", ".csv", ".tex", ".json", ".svg", "-curves.csv"):
        assert "1 of 2 runs diverged (left out of all means)" in (place / "wild" / f"wild{kind}").read_text(), kind
    (place / "wild.toml").write_text("allow_divergence = true\n" + text)
    again = call(place, "wild.toml", "--out", place / "wild")
    assert "2 runs (1 finished, 1 diverged)" in again.stderr
    assert "diverged" in again.stdout


def test_two_experiments_at_once_share_their_runs(place, my_file):
    task = f'tasks = {{ name = "{my_file}:small", delay = 0.003 }}\n'
    (place / "slow.toml").write_text(task + 'algorithms = "fedavg"\nlr = 0.1\nseeds = 2\nrounds = 20\n')
    other = start(place, "slow.toml", "--out", "shared", "--jobs", 1)
    end = time.monotonic() + 120
    while not list((place / "shared").glob("runs/*/metrics.jsonl")):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)
    call(place, "slow.toml", "--out", place / "shared")
    _, stderr = other.communicate(timeout=120)
    assert other.returncode == 0, stderr
    lines = [path.read_text().splitlines() for path in (place / "shared").glob("runs/*/metrics.jsonl")]
    assert [len(records) for records in lines] == [21, 21]


def test_a_run_that_fails_does_not_keep_the_others_from_running(place, my_file):
    broken = "\n\nclass Broken(Nothing):\n    def client_update(self, down, client):\n        1 / 0\n"
    my_file.write_text(my_file.read_text() + broken)
    names = f'["{my_file}:Broken", "{my_file}:Nothing"]'
    (place / "broken.toml").write_text(f'tasks = "{my_file}:small"\nalgorithms = {names}\nseeds = 1\nrounds = 2\n')
    done = call(place, "broken.toml", "--out", place / "broken", code=1)
    assert "failed: small-broken-K10-T2-seed0-" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "nothing" in done.stdout


def test_runs_without_a_metric_are_not_in_the_table_and_no_error(place, my_file):
    unmeasured = "\n\ndef unmeasured():\n    import dataclasses\n    return dataclasses.replace(small(), metric=None)\n"
    my_file.write_text(my_file.read_text() + unmeasured)
    grid = 'algorithms = "fedavg"\nlr = 0.1\nseeds = 2\nrounds = 2\n'
    for name, tasks in (("alone", ["unmeasured"]), ("mixed", ["small", "unmeasured"])):
        (place / f"{name}.toml").write_text(f"tasks = {[f'{my_file}:{task}' for task in tasks]}\n{grid}")
        done = call(place, f"{name}.toml", "--out", place / "unmeasured")
        assert "2 runs have no accuracy: their task has no metric" in done.stdout.replace("\n", " ")
        assert f"fedgbo report {place / 'unmeasured' / 'runs'} -o report.html" in done.stdout.replace("\n", "")
        assert ("Best accuracy" in done.stdout) == (name == "mixed")


def test_a_process_that_is_killed_does_not_keep_the_others_from_running(place, my_file):
    lines = ["class Killed(Nothing):", "    def client_update(self, down, client):", "        import os"]
    my_file.write_text(my_file.read_text() + "\n\n" + "\n".join([*lines, "        os.kill(os.getpid(), 9)"]) + "\n")
    killed, nothing = f"{my_file}:Killed", f"{my_file}:Nothing"
    grid = f'tasks = "{my_file}:small"\nalgorithms = ["{killed}", "{nothing}"]\nseeds = 4\nrounds = 2\n'
    (place / "killed.toml").write_text(f'{grid}[[exclude]]\nalgorithms = "{killed}"\nseeds = [1, 2, 3]\n')
    done = call(place, "killed.toml", "--out", place / "process", "--jobs", 2, code=1)
    assert re.search(
        r"failed: small-killed-K10-T2-seed0-\w+: its process or a parallel process died .*repeat the command",
        done.stderr,
    )
    finished = list((place / "process" / "runs").glob("small-nothing-*/status.json"))
    assert len(finished) >= 3  # of four: one ran beside the one that was killed


def test_folders_and_files_that_cannot_be_used(place):
    (place / "file").touch()
    assert "is a file; choose a folder" in call(place, "twelve.toml", "--out", place / "file", code=4).stderr
    below = call(place, "twelve.toml", "--out", place / "file" / "below", code=4)
    assert "cannot make the folder" in below.stderr
    assert "there is no file" in call(place, "none.toml", code=2).stderr
    assert "jobs must be a whole number" in call(place, "twelve.toml", "--jobs", 0, code=2).stderr


def test_without_altair_there_are_the_numbers_and_how_to_get_it(place, whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    done = call(place, "twelve.toml", "--out", whole)
    assert "pip install 'fedgbo[charts]'" in done.stderr
    assert "wrote" in done.stdout
    assert "twelve-curves.csv" in done.stdout


def test_the_example_of_the_documentation_runs(place):
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    (place / "example.toml").write_text(re.search(r"```toml\n(.*?)```", page, flags=re.DOTALL)[1])
    assert "; 17 runs (17 would run)" in call(place, "example.toml", "--dry-run", "--out", place / "example").stdout
    small = ["--scale", 0.02, "test_samples=20", "clients_per_round=2", "local_steps=1"]
    done = call(place, "example.toml", *small, "--out", place / "example")
    assert "fedgbo-sgdm (beta=0.5)" in done.stdout
    assert (place / "example" / "example-scale0.02-test_samples20-clients_per_round2-local_steps1.md").exists()
