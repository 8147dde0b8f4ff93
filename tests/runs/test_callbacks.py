"""What callbacks get, and how they stop a run."""

import warnings

import pytest
import torch
from tqdm import tqdm

import fedgbo
from fedgbo.runs.folder import RunFolder
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))


def stop_at_four(progress):
    if progress.ledger.round == 4:
        progress.stop()


def raise_at_four(progress):
    if progress.ledger.round == 4:
        raise fedgbo.StopRun("enough")


@pytest.mark.parametrize("callback", [stop_at_four, raise_at_four])
def test_a_callback_stops_a_run_which_is_recorded_evaluated_and_resumable(callback, tmp_path):
    task = make_task(batch_size=4, clients_per_round=2)
    settings = {"rounds": 9, "eval_every": 3, "out": tmp_path / "run"}
    stopped = fedgbo.run(task, GBO, **settings, callbacks=[callback])
    assert [record.round for record in stopped.history] == [0, 3, 4]
    assert RunFolder(tmp_path / "run").status()["status"] == "stopped"
    resumed = fedgbo.run(task, GBO, **settings, resume=True)
    assert torch.equal(resumed.params, fedgbo.run(task, GBO, rounds=9).params)


def test_a_bar_of_tqdms_does_not_stop_the_run(task, capsys):
    with (
        tqdm(total=6, mininterval=0) as bar,
        pytest.warns(UserWarning, match="returned True, which is") as told,
    ):
        result = fedgbo.run(task, GBO, rounds=5, callbacks=[lambda progress: bar.update(1)])
    assert result.history[-1].round == 5
    assert len(told) == 1
    assert "callback test_a_bar_of_tqdms_does_not_stop_the_run.<locals>.<lambda> returned" in str(told[0].message)
    assert "call progress.stop() or raise fedgbo.StopRun" in str(told[0].message)


def test_no_warning_without_a_return_value_and_the_others_are_called_after_a_stop(task):
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedgbo.run(task, GBO, rounds=9, callbacks=[stop_at_four, lambda progress: seen.append(progress.ledger.round)])
    assert seen == [0, 1, 2, 3, 4]


def test_a_single_callback_needs_no_list_and_knows_what_the_run_is(task):
    seen = []
    fedgbo.run(task, GBO, rounds=1, seed=3, callbacks=seen.append)
    assert seen[-1].about["seed"] == 3
    assert seen[-1].about["algorithm"]["optimiser"] == {"name": "sgdm", "lr": 0.3, "beta": 0.9}


def test_what_cannot_be_called(task):
    with pytest.raises(fedgbo.ConfigError, match=r"callbacks must be a list of functions, .* not 3"):
        fedgbo.run(task, GBO, rounds=1, callbacks=3)
    with pytest.raises(fedgbo.ConfigError, match=r"functions of a fedgbo.Progress, and 'print' cannot be called"):
        fedgbo.run(task, GBO, rounds=1, callbacks=["print"])
