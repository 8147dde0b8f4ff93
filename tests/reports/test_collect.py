"""Finding and reading runs, whole and damaged."""

import json
import shutil

import pytest

import fedgbo
from fedgbo.reports.load import collect, find_runs
from fedgbo.runs.folder import RunFolder
from tests.conftest import make_task
from tests.reports.runs import FEDAVG, FEDGBO


def test_runs_are_found_however_deep_and_once(write, tmp_path):
    write(FEDAVG, 0, [0.1], name="b/deep/run")
    write(FEDGBO, 0, [0.1], name="a")
    (tmp_path / "empty").mkdir()
    assert find_runs([tmp_path, tmp_path / "a"]) == [tmp_path / "a", tmp_path / "b/deep/run"]
    assert find_runs([tmp_path / "a"]) == [tmp_path / "a"]
    with pytest.raises(fedgbo.ConfigError, match=r"there is no folder .*nowhere"):
        find_runs([tmp_path / "nowhere"])


def damage(path, how):
    record = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    run = json.loads((path / "run.json").read_text())
    if how == "run.json lost":
        (path / "run.json").unlink()
    elif how == "no JSON":
        (path / "run.json").write_bytes(b"\xff\xfe{")
    elif how == "nested":
        (path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    elif how == "no table":
        (path / "metrics.jsonl").write_text("[1, 2]\n")
    elif how == "bytes":
        (path / "metrics.jsonl").write_bytes(b"\xff\n")
    elif how == "status":
        (path / "status.json").write_text("{}")
    elif how == "no name":
        run["config"]["algorithm"] = {"optimiser": "sgd"}
        (path / "run.json").write_text(json.dumps(run))
    elif how == "odd name":
        run["config"]["task"] = {"name": ["digits"]}
        (path / "run.json").write_text(json.dumps(run))
    elif how == "no text":
        run["config"]["algorithm"]["optimiser"]["name"] = "\ud800"
        (path / "run.json").write_text(json.dumps(run))
    elif how == "text":
        (path / "metrics.jsonl").write_text(json.dumps({**record, "accuracy": "<b>"}) + "\n")
    elif how == "nan":
        (path / "metrics.jsonl").write_text(json.dumps({**record, "loss": float("nan")}) + "\n")
    elif how == "negative":
        (path / "metrics.jsonl").write_text(json.dumps({**record, "round": -1}) + "\n")
    elif how == "larger than a float":
        (path / "metrics.jsonl").write_text(json.dumps({**record, "upload_bytes": 10**400}) + "\n")
    elif how == "no square":  # of which no interval could be made
        (path / "metrics.jsonl").write_text(json.dumps({**record, "drift": {"cosine": 1.7e308}}) + "\n")
    elif how == "twice":
        (path / "metrics.jsonl").write_text(2 * (json.dumps(record) + "\n"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("run.json lost", "has no run.json"),
        ("no JSON", "run.json cannot be read"),
        ("nested", "line 1 is damaged"),
        ("no table", "line 1 is damaged"),
        ("bytes", "metrics.jsonl cannot be read"),
        ("status", "status.json is damaged: its status is None"),
        ("no name", "run.json is damaged: 'name'"),
        ("odd name", "a name is not a string"),
        ("no text", "run.json is damaged: 'utf-8' codec can't encode"),
        ("text", "accuracy must be a number, not '<b>'"),
        ("nan", "loss must be a number, not nan"),
        ("negative", "round must be a whole number from 0 on, not -1"),
        ("larger than a float", "upload_bytes must be a whole number from 0 on, not 1000"),
        ("no square", "cosine must be a number, not 1.7e+308"),
        ("twice", "round 0 does not follow round 0"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_read(write, tmp_path, how, message):
    write(FEDAVG, 0, [0.1, 0.2])
    damage(write(FEDGBO, 0, [0.1, 0.2]).path, how)
    found = collect([tmp_path])
    assert [run.config.label for run in found.runs] == ["fedavg"]
    assert [problem.path.name for problem in found.problems] == ["fedgbo-0"]
    assert message in found.problems[0].reason


def test_status(write, tmp_path):
    assert write(FEDAVG, 0, [0.1]).status == "finished"
    assert write(FEDAVG, 1, [0.1], status=None).status == "died"
    assert write(FEDAVG, 2, [0.1], status="diverged").reason == "x is no longer finite"
    busy = RunFolder(tmp_path / "fedavg-0")
    busy.lock()  # as a resumed run has it, whose status.json is of its last end
    assert collect([tmp_path / "fedavg-0"]).runs[0].status == "running"
    busy.close()
    shutil.copytree(tmp_path / "fedavg-0", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    assert collect([tmp_path / "copy"]).runs[0].status == "finished"


def test_a_run_begun_from_python(tmp_path):
    fedgbo.run(make_task(), fedgbo.FedAvg(fedgbo.SGD(lr=0.1)), rounds=2, out=tmp_path / "run")
    run = collect([tmp_path]).runs[0]
    assert (run.config.label, run.config.task["name"], run.rounds, len(run.records)) == ("fedavg", "small", 2, 3)
