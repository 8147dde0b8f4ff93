"""`fedgbo report` and `fedgbo watch` as a user calls them."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from tests.cli.test_processes import wait_for
from tests.reports.conftest import write_run
from tests.reports.runs import FEDAVG, FEDGBO

runner = CliRunner()


def call(*args):
    return runner.invoke(app, [str(arg) for arg in args])


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "runs", FEDAVG, 0, [0.1, 0.5])
    write_run(tmp_path / "runs", FEDGBO, 0, [0.1, 0.6], status=None)
    (tmp_path / "runs" / "odd [b]").mkdir()
    (tmp_path / "runs" / "odd [b]" / "run.json").write_text("{")
    return tmp_path / "runs"


def test_the_page_and_the_events(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("report", runs)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "page     report.html\n"
    assert "odd [b]" in done.stderr
    assert "run.json cannot be read" in done.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "1 run could not be read" in page
    events = call("report", runs, "--tensorboard", tmp_path / "tb")
    assert events.stdout == f"events   2 runs; tensorboard --logdir {tmp_path / 'tb'}\n"


def test_a_folder_whose_name_is_no_text(tmp_path, monkeypatch):
    """A folder's name may be any bytes; what is no UTF-8 is written as its numbers."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / os.fsdecode(b"odd\xff"), FEDAVG, 0, [0.1, 0.5], task={"name": "nothing"})
    done = call("report", "runs", "-o", "report.html", "--figures", "figures")
    assert done.exit_code == 0, done.stderr
    for file in ("report.html", "figures/nothing-K-10-runs.csv"):
        assert r"odd\udcff/fedavg-0" in (tmp_path / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["nowhere"], 4, "there is no folder nowhere"),
        (["file"], 4, "file is a file; give the folder of the run"),
        (["runs/odd [b]"], 4, "there is no run with an evaluation in runs/odd [b]"),
        (["runs", "-o", "runs"], 2, "give a file in a folder that exists"),
        (["runs", "-o", "none/report.html"], 2, "give a file in a folder that exists"),
        (["runs", "--tensorboard", "file"], 4, "Not a directory; choose another place"),
    ],
)
def test_what_goes_wrong(runs, tmp_path, monkeypatch, args, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = call("report", *args)
    assert done.exit_code == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_watch_once(runs):
    done = call("watch", runs, "--once", "--wide")
    assert done.exit_code == 0
    line = next(line for line in done.stdout.splitlines() if "fedgbo-0" in line)
    assert all(cell in line for cell in ("digits", "fedgbo-sgdm", "10/30", "60.0%", "0.1", "died"))
    assert "1 damaged, 1 died, 1 finished" in done.stdout
    assert "run.json cannot be read" in done.stdout
    views = json.loads(call("watch", runs, "--json").stdout)
    assert [(view["status"], view["best"]) for view in views] == [("finished", 0.5), ("died", 0.6), ("damaged", None)]
    nowhere = call("watch", runs / "nowhere", "--once")
    assert (nowhere.exit_code, "there is no folder" in nowhere.stderr) == (4, True)


@pytest.mark.slow
def test_watching_a_run_of_another_process(my_file, tmp_path):
    """Seen while it runs, then killed; the watcher, on a terminal, is ended by Ctrl-C."""
    toml = tmp_path / "slow.toml"
    toml.write_text(
        f'rounds = 4000\neval_every = 2\nlr = 0.1\nbeta = 0.9\n[task]\nname = "{my_file}:small"\ndelay = 0.002\n'
    )
    command = [sys.executable, "-m", "fedgbo"]
    process = subprocess.Popen([*command, "run", toml, "--quiet", "--out", tmp_path / "runs" / "one"])
    try:
        metrics = tmp_path / "runs" / "one" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
        (view,) = json.loads(call("watch", tmp_path / "runs", "--json").stdout)
        assert view["status"] == "running"
        assert view["ends_at"] is not None
    finally:
        process.kill()
        process.wait()
    assert json.loads(call("watch", tmp_path / "runs", "--json").stdout)[0]["status"] == "died"


@pytest.mark.slow
def test_ctrl_c_ends_watching(runs, tmp_path):
    with (tmp_path / "out").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedgbo", "watch", runs, "--wide", "--every", "0.1"],
            stdout=file,
            stderr=file,
            env={"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": ":".join(sys.path)},
        )
    shown = (tmp_path / "out").read_text
    wait_for(lambda: "fedgbo-sgdm" in shown())
    write_run(runs, FEDAVG, 7, [0.1, 0.2], name="later")
    wait_for(lambda: "later" in shown())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    assert "Traceback" not in shown()
