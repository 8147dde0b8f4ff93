"""The packed store on real files: whole or not at all, checked, and clear about disks that do not do."""

import fcntl
import json
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fedgbo
from fedgbo.core.errors import DataError, FolderBusyError, RunFolderError
from fedgbo.data.store import Store, data_home, open_packed, there

ARRAYS = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.arange(3), "names": np.array(["ann", "böb"])}


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "data" / "toy"
    Store.write(path, ARRAYS, {"task": "toy"})
    return path


def names(path):
    return sorted(file.name for file in path.iterdir())


def test_round_trip_is_memory_mapped(stored):
    store = Store.open(stored)
    assert isinstance(store.arrays["a"], np.memmap)
    assert store.arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert store.arrays["names"].tolist() == ["ann", "böb"]
    assert store.meta["task"] == "toy"
    assert store.nbytes == (stored / "packed.bin").stat().st_size
    store.verify()


def test_arrays_without_elements(tmp_path):
    Store.write(tmp_path, {"none": np.zeros((0, 3), np.float32), "text": np.array([], dtype="<U4")}, {})
    store = Store.open(tmp_path)
    store.verify()
    assert {name: (a.shape, str(a.dtype)) for name, a in store.arrays.items()} == {
        "none": ((0, 3), "float32"), "text": ((0,), "<U4"),
    }  # fmt: skip


def test_the_digest_is_that_of_the_content_alone(stored, tmp_path):
    again = Store.write(tmp_path / "again", ARRAYS, {"task": "toy", "source": "elsewhere"})
    assert Store.open(stored).digest == again == Store.open(tmp_path / "again").digest
    assert Store.write(tmp_path / "other", ARRAYS | {"b": np.array([0, 1, 3])}, {"task": "toy"}) != again
    assert Store.write(tmp_path / "other", ARRAYS | {"b": np.arange(3, dtype=np.uint64)}, {"task": "toy"}) != again


def test_writing_again_replaces_and_readers_keep_what_they_opened(stored):
    before = Store.open(stored)
    Store.write(stored, {"a": np.zeros(1)}, {"task": "new"})
    assert Store.open(stored).meta["task"] == "new"
    assert before.arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert names(stored) == ["lock", "packed.bin"]


def test_a_failed_write_leaves_the_old_one_and_no_debris(stored):
    with pytest.raises(DataError, match="the array bad is of object, which a store cannot hold"):
        Store.write(stored, {"a": np.zeros(1), "bad": np.array([object()])}, {"task": "new"})
    assert Store.open(stored).meta["task"] == "toy"
    assert names(stored) == ["lock", "packed.bin"]


def test_damage_is_named(stored, tmp_path):
    with pytest.raises(fedgbo.DataError, match="holds no packed data"):
        Store.open(tmp_path / "nowhere")
    file = stored / "packed.bin"
    content = file.read_bytes()
    header = content[16 : content.index(b"}}", 16)].decode()
    for damaged, match in [
        (b"", "is not a packed store of this version"),
        (b"PK\3\4" + content, "is not a packed store of this version"),
        (content[:40], r"packed.bin is damaged \(.*\); pack the data again"),
        (content[:-64], r"packed.bin is damaged \(cut short\)"),
        (content.replace(b'"dtype": "|u1"', b'"dtype": "|O1"'), "damaged"),
        (content.replace(b'"dtype": "|u1"', b'"dtype": "|i1"'), "its header does not match its digest"),
        (content.replace(b'"shape": [3]', b'"shape": [2]'), "its header does not match its digest"),
        (content.replace(b'"shape": [3]', b'"shape":[-3]'), "without a proper type, shape or place"),
        (b"fedgbo2\n" + (2).to_bytes(8, "little") + b"[]", "its header is not a table"),
        (b"fedgbo2\n" + (2).to_bytes(8, "little") + b"{}", r"damaged \('arrays'\)"),
    ]:
        assert damaged != content, header
        file.write_bytes(damaged)
        with pytest.raises(fedgbo.DataError, match=match):
            Store.open(stored)


def test_a_changed_byte_is_found_by_verify(stored):
    file = stored / "packed.bin"
    content = bytearray(file.read_bytes())
    content[content.index(bytes(range(6)))] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"packed.bin: the array a does not match its checksum; pack the data again"):
        Store.open(stored).verify()


def test_a_store_of_format_1_is_named_and_replaced(tmp_path):
    folder = tmp_path / "femnist"
    folder.mkdir()
    (folder / "store.json").write_text(json.dumps({"format": 1}))
    np.save(folder / "a.npy", np.zeros(3))
    with pytest.raises(DataError, match="packed by an older version of fedgbo; pack the data again"):
        open_packed("femnist", tmp_path)
    Store.write(folder, ARRAYS, {})
    assert names(folder) == ["lock", "packed.bin"]


def test_one_process_at_a_time(stored):
    with (stored / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FolderBusyError, match=r"another process is packing data into .*toy; wait for it or stop"):
            Store.write(stored, ARRAYS, {"task": "new"})
    Store.write(stored, ARRAYS, {"task": "new"})


def test_a_killed_process_leaves_the_old_store_and_its_draft_is_removed(stored):
    program = """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from fedgbo.data import store
        store.os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
        store.Store.write(Path(sys.argv[1]), {"a": np.zeros(9)}, {"task": "new"})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(stored)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(stored)) == 3  # the draft
    assert Store.open(stored).meta["task"] == "toy"
    Store.write(stored, ARRAYS, {"task": "newer"})
    assert names(stored) == ["lock", "packed.bin"]


def test_a_full_disk_says_so_and_leaves_the_old_store(stored):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(RunFolderError, match=r"cannot write the packed data in .*toy: File too large; check the"):
            Store.write(stored, {"a": np.zeros(100_000)}, {"task": "new"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Store.open(stored).meta["task"] == "toy"
    assert names(stored) == ["lock", "packed.bin"]


def test_a_place_that_is_no_folder_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match=r"cannot write the packed data in .*: Not a directory"):
        Store.write(tmp_path / "file" / "femnist", ARRAYS, {})
    (tmp_path / "femnist" / "packed.bin").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"cannot read .*packed.bin: Is a directory"):
        open_packed("femnist", tmp_path)


def test_a_path_that_cannot_be_looked_at(tmp_path):
    assert there(tmp_path)
    assert not there(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match=r"cannot read .*: File name too long"):
        there(tmp_path / ("x" * 5000))


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
    with pytest.raises(DataError, match=r"fedgbo data prepare femnist --from PATH$"):
        open_packed("femnist", tmp_path)
    with pytest.raises(DataError, match="--from PATH, or use the task femnist-synthetic"):
        open_packed("femnist", tmp_path, "femnist-synthetic")


def test_a_store_is_opened_by_task(tmp_path):
    Store.write(tmp_path / "femnist", {"a": np.arange(3)}, {"task": "femnist"})
    assert open_packed("femnist", tmp_path).arrays["a"].tolist() == [0, 1, 2]
