"""Searches that train, on tasks of a few samples."""

import json

import numpy as np
import optuna
import pytest

from fedgbo.core.errors import ConfigError, DataError, RunFolderError
from fedgbo.data.federated import FederatedData
from fedgbo.experiments.presets import presets
from fedgbo.experiments.tune.plan import claim_search
from fedgbo.experiments.tune.study import edges, local_url, open_study, outcome_of, trials_csv, winner
from fedgbo.runs.folder import RunFolder
from fedgbo.tasks import TASKS
from tests.conftest import make_task
from tests.data.forbidden import Forbidden
from tests.experiments.tune.small import carry_out_all, small_plan, small_study


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """The task "small", whose test set must not be looked at."""
    built = make_task(clients=6, samples=20, features=4, classes=3, batch_size=5, clients_per_round=3)
    data = FederatedData(built.data.train, built.data.offsets, Forbidden())
    object.__setattr__(built, "data", data)
    monkeypatch.setitem(TASKS, "small", lambda: built)
    return built


def test_a_grid_is_tried_without_a_look_at_the_test_set(tmp_path):
    plan = small_plan("lr=0.001,0.3,0.1", task="small")
    (tmp_path / "trials" / "0000" / "seed100" / "checkpoints").mkdir(parents=True)  # all that a kill may leave
    study = carry_out_all(plan, tmp_path)
    found = outcome_of(study, plan)
    assert sorted(tried.settings["lr"] for tried in found.tried) == [0.001, 0.1, 0.3]
    assert {tried.state for tried in found.tried} == {"finished"}
    records = [RunFolder(tmp_path / "trials" / f"{found.best.index:04d}" / f"seed{s}").records() for s in (100, 101)]
    curve = [record.accuracy for run in records for record in run if record.round > 0]
    assert found.best.score == pytest.approx(np.mean(curve))
    assert found.best.score == max(tried.score for tried in found.tried)
    assert found.cost.rounds == 3 * 2 * 4
    assert found.cost.client_steps == found.cost.rounds * 3 * 10
    assert found.cost.upload_bytes == found.cost.download_bytes == 24 * 3 * 4 * (4 * 4 + 4 + 4 * 3 + 3)
    assert not list(tmp_path.rglob("*.safetensors"))
    with pytest.raises(AssertionError, match="looked at"):
        carry_out_all(small_plan("lr=0.1,1", task="small", held_out=None), tmp_path / "test")


def test_poor_trials_are_stopped_early(tmp_path):
    plan = small_plan("lr=0.0001:1", task="small", search="tpe", trials=12, rounds=8, prune=2, eval_every=2)
    found = outcome_of(carry_out_all(plan, tmp_path), plan)
    assert len(found.tried) == 12
    assert len({tried.settings["lr"] for tried in found.tried}) == 12
    stopped = [tried for tried in found.tried if tried.state == "stopped early"]
    assert stopped
    assert {tried.cost["rounds"] for tried in stopped} <= {2, 4, 8}  # the rungs below the 16 rounds of two seeds
    assert found.best.cost["rounds"] == 16
    assert found.cost.rounds == sum(tried.cost["rounds"] for tried in found.tried) < 12 * 16
    rows = trials_csv(plan, found.tried).splitlines()
    assert rows[0].startswith("trial,lr,state,score,rounds,client_steps")
    assert len(rows) == 13


def test_a_setting_that_diverges_does_not_win(tmp_path):
    plan = small_plan("lr=0.1,1e38", task="small")
    found = outcome_of(carry_out_all(plan, tmp_path / "some"), plan)
    assert (found.count("diverged"), found.best.settings) == (1, {"lr": 0.1})
    assert presets_of(tmp_path, winner(plan, found.best))[0].settings == {"lr": 0.1}
    assert edges(plan, found.best) == ["lr=0.1 is the end of what was searched; a better one may lie beyond"]
    hopeless = small_plan("lr=2e38,1e38", task="small")
    none = outcome_of(carry_out_all(hopeless, tmp_path / "none"), hopeless)
    with pytest.raises(RunFolderError, match="no trial was completed"):
        _ = none.best


def presets_of(folder, text):
    (folder / "p.csv").write_text(text)
    return presets(str(folder / "p.csv"))


def test_an_interrupted_trial_goes_on_and_gives_the_same(tmp_path):
    plan = small_plan("lr=0.3,0.1", task="small", rounds=6)
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == 18:  # in the second seed of the first trial, or near it
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out_all(plan, tmp_path / "cut", interrupt)
    cut = outcome_of(carry_out_all(plan, tmp_path / "cut"), plan)
    whole = outcome_of(carry_out_all(plan, tmp_path / "whole"), plan)
    assert [(t.settings, t.score, t.cost["rounds"]) for t in cut.tried] == [
        (t.settings, t.score, t.cost["rounds"]) for t in whole.tried
    ]
    assert (cut.taken_up, cut.lost_rounds, whole.taken_up) == (1, 0, 0)


def test_a_damaged_run_is_named_set_aside_and_done_anew(tmp_path):
    plan = small_plan("lr=0.3,0.1", task="small")
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == 8:  # in the second seed
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out_all(plan, tmp_path / "cut", interrupt)
    first = tmp_path / "cut" / "trials" / "0000" / "seed100"
    (first / "metrics.jsonl").write_text("garbage\n")
    with pytest.raises(RunFolderError, match=r"set aside as .*seed100.damaged-1: .*line 1 is damaged.*; repeat"):
        carry_out_all(plan, tmp_path / "cut")
    cut = outcome_of(carry_out_all(plan, tmp_path / "cut"), plan)
    whole = outcome_of(carry_out_all(plan, tmp_path / "whole"), plan)
    assert [(t.settings, t.score) for t in cut.tried] == [(t.settings, t.score) for t in whole.tried]
    assert (first.parent / "seed100.damaged-1" / "metrics.jsonl").read_text() == "garbage\n"


def test_rounds_that_are_lost_are_counted(tmp_path):
    plan = small_plan("lr=0.3,0.1", task="small", rounds=6, trials=1)
    study = small_study(plan, tmp_path)
    trial = study.ask()
    trial.report(0.5, 9)  # by a worker elsewhere, whose checkpoints we do not have
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    found = outcome_of(carry_out_all(plan, tmp_path), plan)
    assert (found.taken_up, found.lost_rounds, found.cost.rounds) == (1, 9, 12)


def test_a_task_that_fails_stops_the_search_and_can_be_put_right(tmp_path, task, monkeypatch):
    plan = small_plan("lr=0.3,0.1", task="small")
    wrong = make_task(classes=2)
    monkeypatch.setitem(TASKS, "small", lambda: wrong)
    monkeypatch.setattr(wrong.data.train, "targets", wrong.data.train.targets + 7)
    with pytest.raises(DataError, match="labels go from 7 to 8"):
        carry_out_all(plan, tmp_path)
    monkeypatch.setitem(TASKS, "small", lambda: task)
    assert len(outcome_of(carry_out_all(plan, tmp_path), plan).tried) == 2


def test_a_study_is_of_one_search(tmp_path):
    plan = small_plan("lr=0.3,0.1", task="small")
    claim_search(tmp_path / "a", plan, "small")
    claim_search(tmp_path / "a", plan, "small")
    small_study(plan, tmp_path / "a")
    other = small_plan("lr=0.3,0.1", task="small", rounds=5)
    with pytest.raises(RunFolderError, match="its rounds is 4, here it is 5"):
        small_study(other, tmp_path / "a")
    with pytest.raises(RunFolderError, match="holds another search"):
        claim_search(tmp_path / "a", other, "small")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_text("mine")
    with pytest.raises(RunFolderError, match=r"is not empty \(it holds file\)"):
        claim_search(tmp_path / "b", plan, "small")
    assert json.loads((tmp_path / "a" / "tune.json").read_text())["study"] == "small"


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////nowhere/at/all.db", "mysql+none://me:secret@host/db"])
def test_storages_that_cannot_be(url, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.experiments.tune.study.TRIES", 1)
    with pytest.raises(ConfigError, match="the storage cannot be opened") as error:
        open_study(small_plan("lr=0.3,0.1", task="small"), url, "x")
    assert "secret" not in str(error.value)


def test_a_url_is_found_again(tmp_path):
    assert local_url(tmp_path) == f"sqlite:///{tmp_path / 'study.db'}"
