import gzip
import json
import lzma
import tarfile
import tracemalloc

import pytest

from fedgbo.core.errors import DataError
from fedgbo.data import leaf
from fedgbo.data.archives import source_files
from fedgbo.data.leaf import is_leaf, leaf_files, users

from .leaf_samples import write

NASTY = {
    'quo"te': (['a } b { "x": [', "back\\", '\\"}', "{{{"], ["}", '"', "\\", "]"]),
    "plain": ([[0.5, 1], [2, 3]], [0, 1]),
    "nested": ([{"a": {"b": "}{"}}, {"c": [{}]}], [{}, 1]),
    "ümlaut": (["ß", "€"], ["}", "x"]),
}


def read(path):
    return {user.name: (user.x, user.y) for user in users(source_files(path))}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50, 1 << 20])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_reads_back_what_json_wrote_at_any_chunk_size(tmp_path, monkeypatch, chunk, ascii_only, indent):
    monkeypatch.setattr(leaf, "CHUNK", chunk)
    data = {"user_data": {u: {"x": x, "y": y} for u, (x, y) in NASTY.items()}, "hierarchies": [None, True, 1.5]}
    text = json.dumps({"n": 12, "users": list(NASTY), **data}, ensure_ascii=ascii_only, indent=indent)
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert read(tmp_path / "a.json") == NASTY


def test_memory_is_about_one_user_not_one_file(tmp_path):
    data = {f"u{k}": ([[0.123456] * 784] * 10, [1] * 10) for k in range(80)}
    path = write(tmp_path / "a.json", data)
    (source,) = source_files(path)
    tracemalloc.start()
    count = sum(len(user.y) for user in users([source]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 800
    assert peak < path.stat().st_size * 0.7  # the file is 6 MB; the buffer 1 to 2, a user below 1


def test_folders_flat_names_archives_and_pairs(tmp_path):
    data = {"a": (["x"], ["y"])}
    for k in range(2):
        write(tmp_path / "folders" / "train" / f"all_data_{k}.json", {f"u{k}": data["a"]})
        write(tmp_path / "folders" / "test" / f"all_data_{k}.json", {f"u{k}": data["a"]})
    train, test = leaf_files(tmp_path / "folders")
    assert [s.name for s in train] == ["train/all_data_0.json", "train/all_data_1.json"]
    assert [user.name for user in users(test)] == ["u0", "u1"]

    with tarfile.open(tmp_path / "leaf.tgz", "w:gz") as archive:
        archive.add(tmp_path / "folders", "femnist")
    assert [user.name for user in users(leaf_files(tmp_path / "leaf.tgz")[0])] == ["u0", "u1"]

    one = write(tmp_path / "flat" / "all_data_niid_0_keep_0_train_9.json", data)
    other = write(tmp_path / "flat" / "all_data_niid_0_keep_0_test_9.json", data)
    for half in (one, other):
        (tmp_path / "flat" / (half.name + ".xz")).write_bytes(lzma.compress(half.read_bytes()))
        half.unlink()
    for path in (tmp_path / "flat", tmp_path / "flat" / (one.name + ".xz")):
        train, test = leaf_files(path)
        assert [s.name for s in train] == [one.name]
        assert [s.name for s in test] == [other.name]


def test_a_missing_half_is_named(tmp_path):
    write(tmp_path / "train" / "a.json", {"a": (["x"], ["y"])})
    with pytest.raises(DataError, match=r"has no LEAF JSON files for test \(in a folder test/, or with _test_"):
        leaf_files(tmp_path)


def test_other_files_are_not_leafs(tmp_path):
    for name in ("README.md", "data.json", "train/a.csv", "training.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("hello")
    assert not any(map(is_leaf, source_files(tmp_path)))


def fails(path, match):
    with pytest.raises(DataError, match=match) as caught:
        read(path)
    assert path.name in str(caught.value)


def test_every_truncation_is_an_error_that_names_the_file(tmp_path):
    whole = write(tmp_path / "a.json", {"ann": ([[1, 2], [3, 4]], [0, 1]), "bob": ([[5, 6]], [1])}).read_bytes()
    for end in range(len(whole)):
        (tmp_path / "a.json").write_bytes(whole[:end])
        fails(tmp_path / "a.json", "cut short" if end else "is empty")
    (tmp_path / "a.json").write_bytes(whole[: whole.index(b"[5") + 2])
    fails(tmp_path / "a.json", r"ends after byte \d+, in user 'bob': it was cut short")


def test_truncated_compressed_file(tmp_path):
    whole = write(tmp_path / "a.json", {"ann": (["x"] * 100, ["y"] * 100)}).read_bytes()
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(whole)[:-20])
    fails(tmp_path / "b.json.gz", r"b\.json\.gz cannot be read")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[1, 2]", r"at the top, byte 0: expected '{', found b'\['; this is not LEAF's JSON"),
        ("polarity,id\n0,1\n", "at the top, byte 0: expected"),
        ('{"users": []}', "has no 'user_data'"),
        ('{"user_data": [1]}', r"in 'user_data', byte 14: expected '{'"),
        ('{"user_data": {}}', "have no users"),
        ('{"user_data": {"a": {"x": [1 2], "y": [1]}}}', r"in user 'a', about byte 29: no valid JSON"),
        ('{"user_data": {"a": {"x": ["\udcff"], "y": [1]}}}', r"in user 'a', about byte 28: no valid JSON"),
        ('{"user_data": {"a": {"x": [1], "y": [1]}}} {', r"after the last value, byte 43"),
        ('{"user_data": {"a": {"x": [1], "y": [1]} "b"', r"in 'user_data', byte 41: expected ','"),
        ('{"user_data": {3: {}}}', r"expected a name in quotes, found b'3'"),
        ('{"user_data": {"a": {"x": [1, 2], "y": [1]}}}', "user 'a' in .* has 2 x but 1 y"),
        ('{"user_data": {"a": {"x": "1", "y": []}}}', r"user 'a' in .* must be"),
        ('{"user_data": {"a": 7}}', r"user 'a' in .* must be"),
        ('{"users": ["a", 7], "user_data": {"a": {"x": [1], "y": [1]}}}', "'users' has 7, which is not a name"),
        ('{"user_data": {"a": ' + "1" * 100_000, "in a word without end, byte 20: expected a number"),
        (
            '{"user_data": {"a": {"x": [1], "y": [1]}, "a": {"x": [1], "y": [1]}}}',
            "user 'a' in .* appears a second time",
        ),
    ],
)
def test_wrong_content_names_file_user_and_place(tmp_path, text, match):
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(DataError, match=match):
        read(tmp_path / "a.json")


def test_users_without_samples_are_told_apart_later(tmp_path):
    (tmp_path / "a.json").write_text('{"users": ["a", "b"], "user_data": {"a": {"x": [], "y": []}}}')
    assert read(tmp_path / "a.json") == {"a": ([], []), "b": ([], [])}


def test_a_value_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf, "LONGEST", 3 << 20)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"user_data": {"a": "' + b"b" * (8 << 20)))
    fails(tmp_path / "a.json.gz", r"in user 'a': one value has more than 3,145,728 bytes; refused")
