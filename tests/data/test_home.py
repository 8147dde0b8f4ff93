from pathlib import Path

import numpy as np
import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.store import Store, data_home, open_packed


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
