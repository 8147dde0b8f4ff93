import json
from pathlib import Path

import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import DataError
from fedgbo.data.store import Store, data_home, open_packed


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


def test_the_given_folder_comes_first(monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", "/from/variable")
    assert data_home(Path("/given")) == Path("/given")
    assert data_home("~/mine") == Path.home() / "mine"


def test_then_the_variable(monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", "/from/variable")
    assert data_home() == Path("/from/variable")


def test_then_the_cache_folder(monkeypatch):
    monkeypatch.setenv("FEDGBO_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert data_home() == Path("/caches/fedgbo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_home() == Path.home() / ".cache" / "fedgbo"


def test_missing_store_says_how_to_make_it(tmp_path):
    with pytest.raises(DataError, match="fedgbo data prepare femnist --from PATH"):
        open_packed("femnist", tmp_path)


def test_a_store_is_opened_by_task(tmp_path):
    Store.write(tmp_path / "femnist", {"a": np.arange(3)}, {"task": "femnist"})
    assert open_packed("femnist", tmp_path).arrays["a"].tolist() == [0, 1, 2]
