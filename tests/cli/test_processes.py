"""The command as real processes: jobs, kills, Ctrl-C."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app

pytestmark = pytest.mark.slow


def call(*args, code=0):
    """Run a command here, where a process of its own would show nothing more; return stdout, or stderr of a failure."""
    done = CliRunner().invoke(app, list(map(str, args)))
    assert done.exit_code == code, done.stderr
    return done.stderr if code else done.stdout


def records(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def start(*args, cwd):
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "fedgbo", *map(str, args)], cwd=cwd, stdout=pipe, stderr=pipe, text=True
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_one_job_or_two_give_the_same_bits(my_file, tmp_path):
    tables = {}
    shared = ["--task", f"{my_file}:small", "--preset", "none", "--lr", 0.2, "--seeds", 2, "--rounds", 6]
    for jobs in (1, 2):
        out = tmp_path / f"jobs{jobs}"
        said = call("compare", "fedavg", "fedgbo:sgd", *shared, "--jobs", jobs, "--out", out)
        assert "With --wide: Upload, FLOPs, Upload to match, FLOPs to match, p." in said
        assert f"picture  {out / 'accuracy.png'}" in said
        tables[jobs] = (out / "table.json").read_text(), [records(path) for path in sorted((out / "runs").iterdir())]
    assert tables[1] == tables[2]
    assert len(tables[1][1]) == 4


BASE = 'base={name="fedgbo", optimiser={name="sgdm", lr=0.1, beta=0.9}}'
CLOCK = [
    "sampler.name=asynchronous",
    "sampler.concurrency=2",
    "sampler.buffer=2",
    "sampler.period=20",
    "sampler.trace=TRACE",
]
TRACE = "client,seconds_per_sample,bandwidth,on,off\n" + "".join(
    f"{i},{0.01 + 0.02 * i},{500 * (i + 1)},{i},{i + 10}\n" for i in range(10)
)


@pytest.mark.parametrize(
    "settings",
    [["--lr", 0.1, "--beta", 0.9], ["--lr", 0.1, "--algorithm", "scaffold"], ["--algorithm", "fedbuff", BASE, *CLOCK]],
    ids=["fedgbo", "scaffold", "virtual clock"],
)
def test_killed_at_a_random_moment_and_resumed(my_file, tmp_path, settings):
    (tmp_path / "trace.csv").write_text(TRACE)
    settings = [str(part).replace("TRACE", str(tmp_path / "trace.csv")) for part in settings]
    args = ["run", "--task", f"{my_file}:small", *settings, "--rounds", 60, "--eval-every", 5]
    whole = json.loads(call(*args, "--json", "--out", tmp_path / "whole"))
    assert ("simulated_seconds" in whole) == ("fedbuff" in settings)
    out = tmp_path / "killed"
    process = start(*args, "--out", out, cwd=tmp_path)
    wait_for((out / "run.json").exists)
    time.sleep(random.uniform(0, 0.5))
    process.kill()
    process.wait()
    resumed = json.loads(call("resume", out, "--json"))
    assert resumed["digest"] == whole["digest"]
    assert records(out) == records(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_resumable_run(my_file, tmp_path, number):
    toml = tmp_path / "slow.toml"
    toml.write_text(
        f'rounds = 400\neval_every = 10\nlr = 0.1\nbeta = 0.9\n[task]\nname = "{my_file}:small"\ndelay = 0.002\n'
    )
    process = start("run", toml, "--out", tmp_path / "run", cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1)  # after the first ten rounds
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"resume with: fedgbo resume {tmp_path / 'run'}" in stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert 0 < status["round"] < 400
    assert json.loads(call("resume", tmp_path / "run", "--rounds", status["round"] + 1, "--json"))


def test_a_stopped_comparison_goes_on_where_it_was(my_file, tmp_path):
    args = ["compare", "fedavg", "fedgbo:sgd", "--task", f"{my_file}:small", "--preset", "none", "--lr", 0.1]
    args += ["--seeds", 2, "--rounds", 150, "--eval-every", 10, "--out"]
    process = start(*args, tmp_path / "c", "--jobs", 2, cwd=tmp_path)
    wait_for(lambda: len(list((tmp_path / "c").glob("runs/*/metrics.jsonl"))) >= 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped; repeat the command with --out" in stderr
    call(*args, tmp_path / "c", "--jobs", 1)
    call(*args, tmp_path / "d", "--jobs", 1)
    assert (tmp_path / "c" / "table.json").read_text() == (tmp_path / "d" / "table.json").read_text()


def test_ctrl_c_while_workers_still_import_does_not_wait_for_them(my_file, tmp_path):
    args = ["--task", f"{my_file}:small", "--preset", "none", "--lr", 0.1, "--rounds", 9, "--seeds", 2, "--jobs", 2]
    process = start("compare", "fedavg", "fedgbo:sgd", *args, "--out", tmp_path / "c", cwd=tmp_path)
    wait_for(lambda: len(children(process.pid)) > 2)  # two workers, and the tracker of resources
    time.sleep(0.2)  # Ctrl-C is ignored while workers are started; their imports take longer
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1].startswith("stopped; repeat the command with --out")
    assert "Traceback" not in stderr
    assert not list((tmp_path / "c").glob("runs/*"))  # no worker began a run


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_comparison_that_cannot_be(my_file, tmp_path):
    args = ["--task", f"{my_file}:small", "--preset", "none", "--seeds", 1, "--rounds", 4, "--out", tmp_path / "c"]
    assert "needs mu" in call("compare", "fedavg", "fedprox", *args, "--lr", 0.1, code=2)
    assert not (tmp_path / "c").exists()
    diverged = call("compare", "fedavg", *args, "--lr", 1e30, "--jobs", 1, code=5)
    assert "no run finished" in diverged
    assert "try a smaller lr" in diverged
