"""Finding and reading runs, whole and damaged; their metrics as CSV and back."""

import csv
import json
import shutil
from dataclasses import replace

import pytest

import fedgbo
from fedgbo.core.errors import RunFolderError
from fedgbo.reports.load import collect, find_runs, load_run, metrics_csv, read_metrics
from fedgbo.reports.sections import sections_of
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record
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


@pytest.fixture
def written(write, tmp_path):
    """Runs that differ in much, and their file."""
    runs = [
        write(FEDAVG, 0, [0.1, 1 / 3, 0.7]),
        write({**FEDGBO, "objective": [], "inverse": None}, 0, [0.1, 0.5], status="interrupted", test_samples=5000),
        write(FEDGBO, 1, [None, None], clients_per_round="all", task={"name": "digits", "clients": 5}),
    ]
    file = tmp_path / "digits.csv"
    file.write_text(metrics_csv(runs))
    return runs, file


def test_what_was_written_is_read_again_to_the_last_digit(written):
    runs, file = written
    assert read_metrics(file) == [replace(run, path=file.with_name(run.path.name)) for run in runs]


def test_a_row_is_an_evaluation_with_settings_a_reader_can_find(written):
    _, file = written
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == 7
    last = rows[4]
    assert (last["algorithm.name"], last["algorithm.optimiser.beta"], last["seed"]) == ("fedgbo", "0.9", "0")
    assert (last["round"], last["accuracy"], last["upload_bytes"]) == ("10", "0.5", "1000")
    assert rows[0]["algorithm.optimiser.beta"] == ""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("0.3333333333333333", "much", "digits.csv cannot be read as metrics of runs"),
        ("0.3333333333333333", '"""much"""', "digits.csv is damaged: accuracy must be a number"),
        ("fedavg-0,finished", "fedavg-0", "digits.csv"),
        (",20,", ",10,", "digits.csv is damaged: round 10 does not follow round 10"),
        ("local_steps", "lokal_steps", "digits.csv is damaged.*lokal_steps"),
        ("run,status", "run,state", "digits.csv cannot be read"),
    ],
)
def test_a_damaged_file_is_named(written, old, new, told):
    _, file = written
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RunFolderError, match=f"(?s){told}"):
        read_metrics(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"nowhere\.csv cannot be read"):
        read_metrics(tmp_path / "nowhere.csv")


def test_flops_that_were_not_counted_are_empty_cells(write):
    run = write(FEDAVG, 0, [0.1, 0.2])
    uncounted = replace(run, records=tuple(replace(record, flops=None, counted_flops=None) for record in run.records))
    rows = list(csv.DictReader(metrics_csv([uncounted]).splitlines()))
    assert [(row["flops"], row["counted_flops"], row["upload_bytes"]) for row in rows] == [
        ("", "", "0"),
        ("", "", "1000"),
    ]


def test_a_task_of_a_user_has_the_name_that_it_gave_itself(tmp_path):
    config = RunConfig(task={"name": "mine.py:build"}, algorithm=FEDAVG, rounds=30).model_dump()
    for place, name, expected in (("new", "activities", "activities"), ("old", "", "build")):
        folder = RunFolder.create(tmp_path / place, config, name)
        folder.append(Record(0, 3.0, 0.1, None, 0, 0, 0.0, 0.0, 0.0))
        folder.close()
        run = load_run(tmp_path / place)
        assert run.task_name == expected
        assert sections_of([run])[0].title == f"{expected}, K = 10"
