"""Shakespeare and Sent140: opened from a store, made up, and run for a few rounds."""

import math

import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import DataError
from fedgbo.data.store import Store
from fedgbo.data.synthetic_text import synthetic_text, synthetic_tweets
from fedgbo.tasks import TASKS

MADE = {
    "shakespeare": (lambda: synthetic_text(9, 40, 0), {}),
    "sent140": (lambda: synthetic_tweets(30, 40, 0), {"features": 5000}),
}
SETTINGS = {"shakespeare": (7, 32, 162_887), "sent140": (22, 8, 10_002)}


@pytest.mark.parametrize("name", MADE)
def test_task_opens_its_store_with_the_papers_settings(tmp_path, name):
    make, meta = MADE[name]
    arrays = make()
    Store.write(tmp_path / name, arrays, {"task": name, "source": "test", "synthetic": True, **meta})
    task = TASKS[name](data=tmp_path)
    cohort, batch, size = SETTINGS[name]
    assert (task.name, task.clients_per_round, task.batch_size) == (name, cohort, batch)
    assert sum(p.numel() for p in task.model().parameters()) == size
    assert len(task.data.train) == arrays["train_offsets"][-1]
    assert task.data.content_digest == Store.open(tmp_path / name).digest


@pytest.mark.parametrize("name", MADE)
def test_without_a_store_the_command_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"fedgbo data prepare {name} --from PATH"):
        TASKS[name](data=tmp_path)


def test_sent140_with_other_features_is_refused(tmp_path):
    Store.write(tmp_path / "sent140", synthetic_tweets(30, 40, 0), {"features": 100})
    with pytest.raises(DataError, match="has 100 features, the model 5000; pack it again"):
        TASKS["sent140"](data=tmp_path)


@pytest.mark.parametrize(("name", "clients", "mean"), [("shakespeare", 660, 5573), ("sent140", 21_876, 15)])
def test_stand_in_has_the_papers_number_of_clients(name, clients, mean):
    task = TASKS[f"{name}-synthetic"]()
    assert task.name == f"{name}-synthetic"
    assert task.data.clients == clients
    assert np.diff(task.data.offsets).mean() == pytest.approx(mean, rel=0.01)


def test_sent140_stand_in_is_learnt_in_a_few_rounds():
    task = TASKS["sent140-synthetic"](clients=400, test_samples=500)
    result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=10.0, beta=0.9)), rounds=40, local_steps=5, eval_every=40)
    assert result.history[-1].loss < result.history[0].loss - 0.05
    assert result.history[-1].accuracy > 0.62


def test_shakespeare_stand_in_is_learnt_in_a_few_rounds():
    task = TASKS["shakespeare-synthetic"](clients=3, test_samples=50)
    algorithm = fedgbo.FedMAX(fedgbo.SGD(lr=1.0), beta=0.1)
    result = fedgbo.run(task, algorithm, rounds=3, local_steps=3, eval_every=3)
    assert math.isfinite(result.history[-1].loss)
    assert result.history[-1].loss < result.history[0].loss - 0.1
