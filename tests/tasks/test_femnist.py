import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.store import Store
from fedgbo.tasks import TASKS


def parameters(task):
    return sum(p.numel() for p in task.model().parameters())


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (80, 1, 28, 28), dtype=np.uint8),
        "train_labels": (np.arange(80) % 62).astype(np.uint8),
        "train_offsets": np.arange(0, 81, 2),
        "test_images": np.full((8, 1, 28, 28), 255, dtype=np.uint8),
        "test_labels": np.arange(8, dtype=np.uint8),
    }
    Store.write(tmp_path / "femnist", arrays, {"task": "femnist"})
    return tmp_path


def test_the_papers_settings(folder):
    task = TASKS["femnist"](data=folder)
    assert (task.name, task.data.clients, task.clients_per_round, task.batch_size) == ("femnist", 40, 30, 32)
    assert parameters(task) == 870_334
    assert task.data.content_digest == Store.open(folder / "femnist").digest


def test_paper_is_dark_and_nothing_is_augmented(folder):
    data = TASKS["femnist"](data=folder).data
    x, _ = data.test.batch(np.arange(8))
    assert (x == 0).all()
    stored = Store.open(folder / "femnist").arrays["train_images"]
    x, _ = data.train.batch(np.arange(8), np.random.default_rng(0))
    np.testing.assert_allclose(x.numpy(), 1 - stored[:8] / 255, atol=1e-6)


def test_the_first_clients(folder):
    task = TASKS["femnist"](data=folder, clients=7)
    assert (task.data.clients, task.clients_per_round) == (7, 7)
    with pytest.raises(ConfigError, match="clients must be a whole number"):
        TASKS["femnist"](data=folder, clients=0)


def test_without_data_the_way_to_them_is_told(tmp_path):
    with pytest.raises(DataError, match="fedgbo data prepare femnist --from PATH"):
        TASKS["femnist"](data=tmp_path)


def test_stand_in():
    task = TASKS["femnist-synthetic"](clients=4, test_samples=20)
    assert (task.name, task.data.clients, task.clients_per_round) == ("femnist-synthetic", 4, 4)
    assert parameters(task) == 870_334
    x, _ = task.data.test.batch(np.arange(20))
    assert 0.0 == x.min() < x.max() == 1.0
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(lr=0.01, beta=0.9))
    result = fedgbo.run(task, algorithm, rounds=1, local_steps=1, seed=0)
    assert np.isfinite(result.history[-1].loss)
