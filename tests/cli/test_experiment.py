"""`fedgbo experiment` as real processes: killed, damaged, diverged, shared; what it prints and how it ends."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

TWELVE = """
title = "Twelve runs"
tasks = "digits"
algorithms = ["fedavg", "fedgbo", "mfl"]
optimisers = ["sgdm"]
seeds = 4
rounds = 6
eval_every = 2
local_steps = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "twelve.toml").write_text(TWELVE)
    return folder


def call(place, *args, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "fedgbo", "experiment", *map(str, args)],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def whole(place):
    """The folder of an experiment that nobody disturbed."""
    done = call(place, "twelve.toml", "--out", "whole", "--jobs", 2)
    assert "twelve: 12 runs: 12 missing" in done.stderr
    assert "[12/12]" in done.stderr
    assert "Twelve runs: digits, K = 3, 6 rounds" in done.stdout
    return place / "whole"


def tables(out, name="twelve"):
    return {kind: (out / f"{name}.{kind}").read_bytes() for kind in ("json", "md", "csv", "tex", "svg")} | {
        "curves": (out / f"{name}-curves.csv").read_bytes()
    }


def test_killed_in_the_middle_with_two_jobs_and_started_again(place, whole):
    args = [sys.executable, "-m", "fedgbo", "experiment", "twelve.toml", "--out", "killed", "--jobs", "2", "-q"]
    process = subprocess.Popen(args, cwd=place, stderr=subprocess.PIPE)
    end = time.monotonic() + 120
    while len(done := list((place / "killed").glob("runs/*/status.json"))) < 4:
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = list((place / "killed").glob("runs/*/status.json"))
    finished = {path: path.stat().st_mtime_ns for path in done if json.loads(path.read_text())["status"] == "finished"}
    metrics = {path: path.with_name("metrics.jsonl").stat().st_mtime_ns for path in finished}
    assert 4 <= len(finished) < 12
    again = call(place, "twelve.toml", "--out", "killed", "--jobs", 2)
    assert f"{len(finished)} finished" in again.stderr
    assert f"[{12 - len(finished):>2}/{12 - len(finished)}]".replace("[ ", "[") in again.stderr.replace("[ ", "[")
    assert tables(place / "killed") == tables(whole)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert {path: path.with_name("metrics.jsonl").stat().st_mtime_ns for path in finished} == metrics
    assert len(list((place / "killed" / "runs").iterdir())) == 12


def test_damaged_folders_are_named_set_aside_and_done_anew(place, whole):
    out = place / "damaged"
    shutil.copytree(whole, out)
    one, two, three = sorted((out / "runs").iterdir())[:3]
    (one / "run.json").write_text("garbage")
    two.joinpath("metrics.jsonl").write_text(
        two.joinpath("metrics.jsonl").read_text().replace('"round": 2', '"round": "2"')
    )
    for checkpoint in (three / "checkpoints").iterdir():
        checkpoint.write_bytes(b"garbage")
    listed = call(place, "twelve.toml", "--out", out, "--dry-run")
    assert "12 runs: 9 finished, 3 damaged" in listed.stdout
    assert f"damaged   {one.name} (" in listed.stdout
    done = call(place, "twelve.toml", "--out", out, "--jobs", 2)
    for folder in (one, two, three):
        line = f"damaged, set aside as {folder.name}.damaged-1, and done anew: "
        assert line in done.stderr
        assert line in done.stdout
        assert folder.with_name(f"{folder.name}.damaged-1").is_dir()
    assert "[3/3]" in done.stderr
    assert tables(out) == tables(whole)


def test_another_experiment_finds_the_runs_again_and_not_those_with_other_settings(place, whole):
    (place / "other.toml").write_text(TWELVE.replace('["fedavg", "fedgbo", "mfl"]', '["fedgbo", "fedavg"]'))
    assert "8 runs: 8 finished" in call(place, "other.toml", "--out", whole, "--dry-run").stdout
    assert "8 runs: 8 missing" in call(place, "other.toml", "local_steps=4", "--out", whole, "--dry-run").stdout
    scaled = call(place, "other.toml", "--scale", 0.5, "--out", whole, "--dry-run").stdout
    assert "Twelve runs; scale 0.5: 3 rounds, 2 seeds, at most 5000 test samples: 4 runs: 4 missing" in scaled


def test_divergence_is_an_error_unless_it_is_expected(place):
    text = 'algorithms = "fedavg"\nseeds = 1\nrounds = 2\n[[run]]\nalgorithms = "fedavg"\nlr = 1e30\n'
    (place / "wild.toml").write_text(text)
    done = call(place, "wild.toml", "--out", "wild", "--jobs", 1, check=False)
    assert done.returncode == 5
    assert "allow_divergence = true" in done.stderr
    assert "diverged: digits-fedavg-K10-T2-seed0-" in done.stdout
    row = next(row for row in json.loads((place / "wild" / "wild.json").read_text())["rows"] if "1e+30" in str(row))
    assert row["Best accuracy (%)"]["ours"] == "diverged"
    (place / "wild.toml").write_text("allow_divergence = true\n" + text)
    again = call(place, "wild.toml", "--out", "wild", "--jobs", 1)
    assert "2 runs: 1 finished, 1 diverged" in again.stderr
    assert "diverged" in again.stdout


def test_two_experiments_at_once_share_their_runs(place, my_file):
    text = f'tasks = {{ name = "{my_file}:small", delay = 0.003 }}\nalgorithms = "fedavg"\nlr = 0.1\nseeds = 2\nrounds = 20\n'
    (place / "slow.toml").write_text(text)
    args = [sys.executable, "-m", "fedgbo", "experiment", "slow.toml", "--out", "shared", "--jobs", "1"]
    both = [subprocess.Popen(args, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"]
    for process in both:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    lines = [path.read_text().splitlines() for path in (place / "shared").glob("runs/*/metrics.jsonl")]
    assert [len(records) for records in lines] == [21, 21]


def test_a_run_that_fails_does_not_keep_the_others_from_running(place, my_file):
    broken = (
        my_file.read_text() + "\n\nclass Broken(Nothing):\n    def client_update(self, down, client):\n        1 / 0\n"
    )
    my_file.write_text(broken)
    names = f'["{my_file}:Broken", "{my_file}:Nothing"]'
    (place / "broken.toml").write_text(f'tasks = "{my_file}:small"\nalgorithms = {names}\nseeds = 1\nrounds = 2\n')
    done = call(place, "broken.toml", "--out", "broken", "--jobs", 1, check=False)
    assert done.returncode == 1
    assert "failed: small-broken-K10-T2-seed0-" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "nothing" in done.stdout


def test_folders_and_files_that_cannot_be_used(place):
    (place / "file").touch()
    done = call(place, "twelve.toml", "--out", "file", check=False)
    assert (done.returncode, "file is a file; choose a folder" in done.stderr) == (4, True)
    done = call(place, "twelve.toml", "--out", "file/below", check=False)
    assert (done.returncode, "cannot make the folder" in done.stderr) == (4, True)
    done = call(place, "none.toml", check=False)
    assert (done.returncode, "there is no file none.toml" in done.stderr) == (2, True)
    done = call(place, "twelve.toml", "--jobs", 0, check=False)
    assert (done.returncode, "jobs must be a whole number" in done.stderr) == (2, True)
