import json

import numpy as np
import pytest

import fedgbo
from fedgbo.data.store import Store


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "data" / "toy"
    Store.write(path, {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.arange(3)}, {"task": "toy"})
    return path


def test_round_trip_is_memory_mapped(stored):
    store = Store.open(stored)
    assert isinstance(store.arrays["a"], np.memmap)
    assert store.arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert store.meta["task"] == "toy"


def test_writing_again_replaces(stored):
    Store.write(stored, {"a": np.zeros(1)}, {"task": "new"})
    assert Store.open(stored).meta["task"] == "new"
    assert [path.name for path in stored.parent.iterdir()] == ["toy"]


def test_a_failed_write_leaves_the_old_one_and_no_debris(stored):
    with pytest.raises(ValueError, match="allow_pickle"):
        Store.write(stored, {"a": np.zeros(1), "bad": np.array([object()])}, {"task": "new"})
    assert Store.open(stored).meta["task"] == "toy"
    assert [path.name for path in stored.parent.iterdir()] == ["toy"]


def test_damage_is_named(stored, tmp_path):
    with pytest.raises(fedgbo.DataError, match="holds no packed data"):
        Store.open(tmp_path / "nowhere")
    content = (stored / "a.npy").read_bytes()
    (stored / "a.npy").write_bytes(content[:-2])
    with pytest.raises(fedgbo.DataError, match=r"a.npy is missing or damaged"):
        Store.open(stored)
    np.save(stored / "a.npy", np.zeros(3))
    with pytest.raises(fedgbo.DataError, match=r"not the array that store.json describes"):
        Store.open(stored)
    about = json.loads((stored / "store.json").read_text())
    (stored / "store.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(fedgbo.DataError, match="has format 99"):
        Store.open(stored)
    (stored / "store.json").write_text("{")
    with pytest.raises(fedgbo.DataError, match=r"store.json is damaged"):
        Store.open(stored)
