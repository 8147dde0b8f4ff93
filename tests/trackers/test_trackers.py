"""The callbacks for experiment trackers, with the real packages: wandb offline, MLflow's file store, our own events."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest

import fedgbo
from fedgbo.trackers import MLflow, TensorBoard, WandB
from tests.conftest import make_task

ROOT = Path(__file__).parents[2]
GBO = fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9))
WANDB = """
import wandb, fedgbo, json, sys
from fedgbo.trackers import WandB
from tests.conftest import make_task
logged = []
with wandb.init(project="fl", mode="offline", dir=sys.argv[1], settings=wandb.Settings(console="off")) as tracked:
    log = tracked.log
    tracked.log = lambda values, step: (logged.append([step, values["score/loss"]]), log(values, step=step))
    result = fedgbo.run(make_task(), fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.9)), rounds=4, eval_every=2,
                        callbacks=[WandB(tracked)])
    config = dict(tracked.config)
print(json.dumps({"logged": logged, "config": config, "losses": [[r.round, r.loss] for r in result.history]}))
"""


def test_wandb_gets_every_evaluation_and_the_settings(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WANDB, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["logged"] == told["losses"]
    assert [step for step, _ in told["logged"]] == [0, 2, 4]
    assert told["config"]["algorithm.optimiser.lr"] == 0.3
    assert told["config"]["rounds"] == 4
    assert list(tmp_path.rglob("run-*.wandb"))


def test_mlflow_gets_every_evaluation_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(fedgbo.ConfigError, match="MLflow has no active run; start one"):
        MLflow()
    with mlflow.start_run() as tracked:
        result = fedgbo.run(make_task(), GBO, rounds=4, eval_every=2, callbacks=[MLflow()])
        fedgbo.run(make_task(), GBO, rounds=4, eval_every=4, callbacks=[MLflow()])  # the same settings once more
    client, run_id = mlflow.MlflowClient(), tracked.info.run_id
    losses = [(m.step, m.value) for m in client.get_metric_history(run_id, "score/loss")]
    assert losses[:3] == [(record.round, record.loss) for record in result.history]
    params = client.get_run(run_id).data.params
    assert (params["algorithm.optimiser.beta"], params["seed"]) == ("0.9", "0")


def test_tensorboard_gets_every_evaluation(tmp_path):
    result = fedgbo.run(make_task(), GBO, rounds=4, eval_every=2, callbacks=TensorBoard(tmp_path / "logs"))
    (file,) = (tmp_path / "logs").iterdir()
    assert "tfevents" in file.name
    content = file.read_bytes()
    assert content.count(b"score/loss") == 3
    for record in result.history:
        assert struct.pack("<f", record.loss) in content
    fedgbo.run(make_task(), GBO, rounds=1, callbacks=TensorBoard(tmp_path / "logs"))
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_what_cannot_be_tracked(tmp_path, monkeypatch):
    with pytest.raises(fedgbo.ConfigError, match=r"WandB needs the run that wandb\.init returns, not 'project'"):
        WandB("project")
    (tmp_path / "file").touch()
    with pytest.raises(fedgbo.RunFolderError, match=r"cannot write into .*; choose another place"):
        fedgbo.run(make_task(), GBO, rounds=1, callbacks=TensorBoard(tmp_path / "file"))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"the MLflow callback needs mlflow: pip install 'fedgbo\[mlflow\]'"):
        MLflow()
