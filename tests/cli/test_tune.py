"""`fedgbo tune` as real processes: shared, killed, resumed."""

import csv
import json
import subprocess
import sys

import optuna
import pytest

from fedgbo.cli.run import run
from fedgbo.cli.tune import tune
from fedgbo.core.errors import ConfigError
from fedgbo.experiments.tune.claims import standing
from tests.cli.test_processes import start, wait_for

pytestmark = pytest.mark.slow

SLOW = "\n\ndef slow():\n    return small(delay=0.002)\n"
GRID = ["--search", "grid", "lr=0.05,0.5", "beta=0.3,0.6,0.9", "--rounds", 4, "--seeds", 2, "--eval-every", 1]


@pytest.fixture
def slow(my_file):
    """A task that takes its time."""
    my_file.write_text(my_file.read_text() + SLOW)
    return f"{my_file}:slow"


def trials_of(out):
    with (out / "trials.csv").open(newline="") as file:
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: int(row["trial"]))


def study_of(out, name="slow-fedgbo-sgdm-K10"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{out / 'study.db'}")


def test_two_commands_share_a_study_and_its_preset_runs(slow, tmp_path, capsys):
    args = ["tune", "--task", slow, *GRID, "--jobs", 1, "--out", tmp_path / "t"]
    both = [start(*args, cwd=tmp_path) for _ in range(2)]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert ends[0][0].splitlines()[0] == ends[1][0].splitlines()[0]
    every = standing(study_of(tmp_path / "t").get_trials())
    trials = {index: trial for index, trial in every.items() if "cost" in trial.user_attrs}
    assert all(index >= 6 for index in every.keys() - trials.keys())  # begun by the slower at the end, and dropped
    cells = {(trial.params["lr"], round(1 - trial.params["1 - beta"], 6)) for trial in trials.values()}
    assert cells == {(lr, beta) for lr in (0.05, 0.5) for beta in (0.3, 0.6, 0.9)}
    assert len(trials) == 6
    assert len({trial.user_attrs["worker"] for trial in trials.values()}) == 2
    assert not any("again" in trial.user_attrs for trial in trials.values())
    assert {row["state"] for row in trials_of(tmp_path / "t")} == {"finished", "stopped early"}
    assert (tmp_path / "t" / "sensitivity.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / "t" / "sensitivity.svg").read_text()[:500]

    best = json.loads((tmp_path / "t" / "result.json").read_text())["settings"]
    run(preset=str(tmp_path / "t" / "preset.csv"), task=slow, algorithm="fedgbo", rounds=1, to=tmp_path / "run")
    assert f"lr={best['lr']:g}, beta={best['beta']:g}" in capsys.readouterr().err
    optimiser = json.loads((tmp_path / "run" / "run.json").read_text())["config"]["algorithm"]["optimiser"]
    assert (optimiser["lr"], optimiser["beta"]) == (best["lr"], best["beta"])


def test_killed_and_gone_on_with(slow, tmp_path, capsys):
    asked = {"task": slow, "search": "grid", "prune": 0, "rounds": 8, "seeds": 1, "eval_every": 2}
    flags = [part for key, value in asked.items() for part in (f"--{key.replace('_', '-')}", value)]
    ranges = ["lr=0.05,0.5", "beta=0.6,0.9"]
    process = start("tune", *flags, *ranges, "--jobs", 2, "--out", tmp_path / "cut", cwd=tmp_path)
    wait_for(lambda: len(list((tmp_path / "cut").glob("trials/*/*/checkpoints/*"))) >= 2)
    process.kill()
    process.communicate()
    tune(ranges, **asked, jobs=1, to=tmp_path / "cut")
    trials = standing(study_of(tmp_path / "cut").get_trials())
    again = [trial for trial in trials.values() if "again" in trial.user_attrs]
    assert again
    assert f"{len(again)} resumed after a kill" in capsys.readouterr().out
    tune(ranges, **asked, jobs=1, to=tmp_path / "whole")
    assert trials_of(tmp_path / "cut") == trials_of(tmp_path / "whole")
    assert (tmp_path / "cut" / "preset.csv").read_text() == (tmp_path / "whole" / "preset.csv").read_text()


def test_optuna_is_not_needed_for_anything_else(tmp_path):
    code = """
import sys
sys.modules["optuna"] = None
import fedgbo, fedgbo.cli.main
sys.argv = ["fedgbo", "tune", "--out", "t"]
fedgbo.cli.main.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "fedgbo tune needs optuna: pip install 'fedgbo[tune]'" in done.stderr
    assert not (tmp_path / "t").exists()


def test_without_a_metric_the_loss_is_what_counts(my_file, tmp_path, capsys):
    lines = ["def lossy():", "    import dataclasses", "    return dataclasses.replace(small(), metric=None)"]
    my_file.write_text(my_file.read_text() + "\n\n" + "\n".join(lines) + "\n")
    asked = {"task": f"{my_file}:lossy", "algorithm": "fedavg", "search": "grid", "prune": 0, "rounds": 8, "jobs": 1}
    tune(["lr=0.0001,0.1"], **asked, to=tmp_path / "t", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] == "mean held-out loss, negative"
    assert found["settings"] == {"lr": 0.1}
    assert found["score"] < 0


def test_tuning_on_the_test_set_warns(my_file, tmp_path, capsys):
    asked = {"task": f"{my_file}:small", "algorithm": "fedavg", "trials": 2, "rounds": 2, "jobs": 1}
    tune(["lr=0.01:1"], **asked, on="test", to=tmp_path / "t", as_json=True)
    printed = capsys.readouterr()
    assert "warning: settings are chosen on the test set" in printed.err
    found = json.loads(printed.out)
    assert found["trials"] == 2
    assert found["measured"] == "mean test accuracy"
    config = json.loads(next((tmp_path / "t").rglob("run.json")).read_text())["config"]
    assert config["held_out"] is None
    with pytest.raises(ConfigError, match="unknown data to tune on 'train'"):
        tune(["lr=0.01:1"], **asked, on="train")


def test_every_trial_is_shown_once(my_file, tmp_path, capsys):
    """The command looks at the study only from time to time, and once more at the end."""
    asked = {"task": f"{my_file}:small", "algorithm": "fedavg", "search": "grid", "prune": 0, "rounds": 2, "jobs": 1}
    tune(["lr=0.01,0.02,0.05,0.1"], **asked, to=tmp_path / "t")
    lines = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert sorted(lines) == ["trial 0", "trial 1", "trial 2", "trial 3"]
