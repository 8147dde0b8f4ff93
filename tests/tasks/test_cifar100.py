import numpy as np
import pytest
import torch

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
        "train_images": rng.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8),
        "train_labels": (np.arange(60) % 100).astype(np.uint8),
        "train_offsets": np.arange(0, 61, 10),
        "test_images": rng.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8),
        "test_labels": np.arange(8, dtype=np.uint8),
    }
    Store.write(tmp_path / "cifar100", arrays, {"task": "cifar100"})
    return tmp_path


def test_the_papers_settings(folder):
    task = TASKS["cifar100"](data=folder)
    assert (task.name, task.clients_per_round, task.batch_size) == ("cifar100", 5, 32)
    assert parameters(task) == 1_250_852
    images = Store.open(folder / "cifar100").arrays["test_images"]
    x, y = task.data.test.batch(np.array([3]))
    np.testing.assert_allclose(x[0, 1].numpy(), (images[3, 1] / 255 - 0.4822) / 0.1994, atol=1e-5)
    assert y.tolist() == [3]


def test_augmentation_in_training_only(folder):
    task = TASKS["cifar100"](data=str(folder))
    rows = np.arange(6)
    plain = task.data.train.batch(rows)[0]
    augmented = task.data.train.batch(rows, np.random.default_rng(0))[0]
    assert augmented.shape == plain.shape == (6, 3, 32, 32)
    assert not torch.equal(augmented, plain)
    assert (augmented == 0).any()  # the padding
    assert torch.equal(task.data.test.batch(rows, None)[0], task.data.test.batch(rows)[0])


def test_28_pixels_as_in_the_papers_text(folder):
    task = TASKS["cifar100"](data=folder, crop=28)
    rows = np.arange(6)
    whole = TASKS["cifar100"](data=folder).data.train.batch(rows)[0]
    assert torch.equal(task.data.train.batch(rows)[0], whole[:, :, 2:30, 2:30])
    augmented = task.data.train.batch(rows, np.random.default_rng(0))[0]
    assert augmented.shape == (6, 3, 28, 28)
    assert not (augmented == 0).any()
    assert task.model()(augmented).shape == (6, 100)


def test_other_crops_are_refused(folder):
    with pytest.raises(ConfigError, match="crop must be 32, or 28 as in the paper's text, not 24"):
        TASKS["cifar100"](data=folder, crop=24)


def test_without_data_the_way_to_them_is_told(tmp_path):
    with pytest.raises(DataError, match="fedgbo data prepare cifar100 --from PATH"):
        TASKS["cifar100"](data=tmp_path)


def test_stand_in():
    task = TASKS["cifar100-synthetic"](clients=8, test_samples=20)
    assert (task.name, task.clients_per_round, task.batch_size) == ("cifar100-synthetic", 5, 32)
    assert (task.data.clients, task.data.size(7), len(task.data.test)) == (8, 100, 20)
    assert parameters(task) == 1_250_852
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(lr=0.01, beta=0.9))
    result = fedgbo.run(task, algorithm, rounds=1, local_steps=1, seed=0)
    assert np.isfinite(result.history[-1].loss)
