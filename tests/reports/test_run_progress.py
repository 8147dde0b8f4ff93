"""Runs as they go on."""

import json

import pytest

from fedgbo.reports.run_progress import Follower
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Record
from tests.reports.runs import FEDAVG, FEDGBO


def test_a_run_that_goes_on(write, tmp_path):
    write(FEDAVG, 0, [0.1, 0.5, 0.4], status=None, rounds=100)
    folder = RunFolder(tmp_path / "fedavg-0")
    folder.lock()
    follower = Follower(tmp_path, clock=lambda: 1000.0)
    (view,) = follower.look()
    assert (view.status, view.round, view.rounds, view.latest, view.best) == ("running", 20, 100, 0.4, 0.5)
    assert view.seconds_per_round == pytest.approx(0.1)
    assert view.ends_at == pytest.approx(1000 + 80 * 0.1)
    folder.append(Record(30, 1.0, 0.7, 1.0, 0, 0, 0, 0, 4.0))
    (view,) = follower.look()
    assert (view.round, view.best) == (30, 0.7)
    (tmp_path / "fedavg-0" / "checkpoints" / "round-00000037.safetensors").touch()
    assert follower.look()[0].round == 37  # newer than the last evaluation
    folder.close()
    (view,) = follower.look()
    assert (view.status, view.ends_at) == ("died", None)


def test_what_has_not_changed_is_not_read_again(write, tmp_path, monkeypatch):
    write(FEDAVG, 0, [0.1])
    follower = Follower(tmp_path)
    before = follower.look()
    monkeypatch.setattr("fedgbo.reports.run_progress.load_run", None)
    assert follower.look() == before


def test_new_ended_and_damaged_runs(write, tmp_path):
    follower = Follower(tmp_path)
    assert follower.look() == []
    write(FEDAVG, 0, [0.1])
    write(FEDAVG, 1, [0.1], status="diverged")
    write(FEDGBO, 0, [], status=None)
    assert [(v.status, v.round) for v in follower.look()] == [("finished", 0), ("diverged", 0), ("died", 0)]
    assert follower.look()[1].problem == "x is no longer finite"
    (tmp_path / "fedavg-0" / "run.json").write_text(json.dumps({}))
    damaged = follower.look()[0]
    assert (damaged.status, "run.json is damaged" in damaged.problem) == ("damaged", True)
