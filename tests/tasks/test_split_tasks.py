"""Fashion-MNIST and CIFAR-10: public images that are dealt to clients when a task is opened."""

import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.store import Store
from fedgbo.tasks import TASKS

SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
PARAMETERS = {"fashion-mnist": 843_658, "cifar10": 1_204_682}


@pytest.fixture(params=SHAPES)
def name(request, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (200, *SHAPES[request.param]), dtype=np.uint8),
        "train_labels": (np.arange(200) % 10).astype(np.uint8),
        "test_images": rng.integers(0, 256, (20, *SHAPES[request.param]), dtype=np.uint8),
        "test_labels": (np.arange(20) % 10).astype(np.uint8),
    }
    Store.write(tmp_path / request.param, arrays, {"task": request.param})
    return request.param


def classes(data):
    return [set(data.train.labels_of(np.arange(*data.offsets[c : c + 2])).tolist()) for c in range(data.clients)]


def test_the_splits(name, tmp_path):
    for split in ("iid", "dirichlet", "shards"):
        task = TASKS[name](data=tmp_path, split=split, clients=20)
        assert (task.name, task.data.clients, task.clients_per_round, task.batch_size) == (name, 20, 10, 32)
        assert [task.data.size(c) for c in range(20)] == [10] * 20
        assert sum(p.numel() for p in task.model().parameters()) == PARAMETERS[name]
    assert max(map(len, classes(TASKS[name](data=tmp_path, split="shards", clients=20).data))) <= 2
    skewed, even = (TASKS[name](data=tmp_path, clients=20, alpha=alpha).data for alpha in (0.01, 1000))
    assert np.mean([len(few) for few in classes(skewed)]) < 3 < np.mean([len(many) for many in classes(even)])


def test_every_sample_is_dealt_once_with_its_own_label(name, tmp_path):
    data = TASKS[name](data=tmp_path, clients=20, seed=3).data
    stored = Store.open(tmp_path / name).arrays
    plain, labels = data.train.batch(np.arange(200))
    wanted = {
        image.tobytes(): label for image, label in zip(stored["train_images"], stored["train_labels"], strict=True)
    }
    dealt = [image.tobytes() for image in data.train.images[np.arange(200)]]
    assert sorted(dealt) == sorted(wanted)
    assert labels.tolist() == [wanted[image] for image in dealt]
    assert plain.shape == (200, *SHAPES[name])
    assert data.content_digest == Store.open(tmp_path / name).digest


def test_the_split_is_by_seed(name, tmp_path):
    first, again, other = (TASKS[name](data=tmp_path, clients=20, seed=seed).data.train.labels for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()


def test_wrong_settings(name, tmp_path):
    for settings, message in [
        ({"split": "idd"}, "unknown split 'idd'; did you mean 'iid'"),
        ({"clients": 0}, "clients must be a whole number of at least 1"),
        ({"alpha": 0}, "alpha must be a finite number above 0"),
        ({"split": "shards", "shards_per_client": 0}, "shards_per_client must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
    ]:
        with pytest.raises(ConfigError, match=message):
            TASKS[name](data=tmp_path, **settings)
    with pytest.raises(DataError, match="clients is 201, but there are only 200 samples"):
        TASKS[name](data=tmp_path, clients=201)
    with pytest.raises(DataError, match=f"fedgbo data prepare {name} --from PATH$"):
        TASKS[name](data=tmp_path / "nowhere")
    Store.write(tmp_path / name, {"test_labels": np.zeros(3)}, {})
    with pytest.raises(DataError, match="lacks train_images or train_labels; pack the data again"):
        TASKS[name](data=tmp_path)


def test_a_round(name, tmp_path):
    task = TASKS[name](data=tmp_path, clients=20)
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(lr=0.01, beta=0.9))
    results = [fedgbo.run(task, algorithm, rounds=1, local_steps=1, seed=0, workers=w) for w in (1, 2)]
    assert np.isfinite(results[0].history[-1].loss)
    assert (results[0].state.params == results[1].state.params).all()
