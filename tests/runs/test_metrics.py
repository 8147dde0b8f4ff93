"""What is measured gets into records, folders and checkpoints, and old ones can still be read."""

import json

import pytest

import fedgbo
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Ledger, Record
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))


def test_a_record_has_the_mean_since_the_last():
    task = make_task(batch_size=4, clients_per_round=2)
    every = fedgbo.run(task, GBO, rounds=4, eval_every=1, metrics=("drift",)).history
    second = fedgbo.run(task, GBO, rounds=4, eval_every=2, metrics=("drift",)).history
    assert [record.drift is None for record in second] == [True, False, False]
    for name in ("cosine", "error", "bound"):
        assert second[2].drift[name] == pytest.approx((every[3].drift[name] + every[4].drift[name]) / 2)


@pytest.mark.parametrize("stop_at", [3, 4])
def test_resume_goes_on_with_the_same_means(tmp_path, stop_at):
    task, settings = make_task(batch_size=4), {"rounds": 8, "eval_every": 4, "metrics": ["drift"]}
    whole = fedgbo.run(task, GBO, **settings)

    def interrupt(progress):
        if progress.ledger.round == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedgbo.run(task, GBO, **settings, out=tmp_path / "run", callbacks=[interrupt])
    resumed = fedgbo.run(task, GBO, **settings, out=tmp_path / "run", resume=True)
    assert [r.drift for r in resumed.history] == [r.drift for r in whole.history]
    assert RunFolder(tmp_path / "run").records() == resumed.history


def test_measuring_may_begin_or_change_at_a_resume(tmp_path):
    task = make_task(batch_size=4)
    fedgbo.run(task, GBO, rounds=2, out=tmp_path / "run")
    longer = fedgbo.run(task, GBO, rounds=4, out=tmp_path / "run", resume=True, metrics=["cosine"])
    assert [r.drift is None for r in longer.history] == [True, True, True, False, False]
    ledger = Ledger(drift_sum={"cosine": 5.0}, drift_rounds=3).with_drift({"cosine": 1.0, "error": 2.0})
    assert ledger.mean_drift() == {"cosine": 1.0, "error": 2.0}


def test_records_without_drift_are_as_they_were():
    line = '{"round": 1, "loss": 1.0, "accuracy": 0.5, "train_loss": 0.1, "download_bytes": 8, "upload_bytes": 4, '
    line += '"flops": 1.0, "counted_flops": 2.0, "seconds": 0.1}\n'
    record = Record.of_line(line)
    assert record.drift is None
    assert record.line() == line
    with_drift = Record(**{**json.loads(line), "drift": {"cosine": 0.25}})
    assert Record.of_line(with_drift.line()) == with_drift


def test_unknown_metrics_are_refused(task):
    with pytest.raises(fedgbo.ConfigError, match=r"unknown metric 'drfit'; did you mean 'drift'\?"):
        fedgbo.run(task, GBO, rounds=1, metrics=("drfit",))
