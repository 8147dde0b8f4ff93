"""TFF's Shakespeare in both of its formats, and files that only pretend to be TFF's."""

import lzma
import sqlite3

import h5py
import numpy as np
import pytest

from fedgbo.core.errors import DataError, FedGBOError
from fedgbo.data.public import ClientRules
from fedgbo.data.shakespeare import decode, read_shakespeare, window_data

from .tff_samples import example, field, varint, write_hdf5, write_sqlite

ANN = [b"My lord, the Duke of York is gone to bed.\nHe rose\r\n  not up again, and will", b"not rise at all today."]
BOB = [b"Good morrow, cousin. " * 5]
TEST = [b"To-morrow and to-morrow and to-morrow creeps in this petty pace from day to day." + b" Ay." * 4]
HALVES = {"train": {"ANN": ANN, "BOB": BOB}, "test": {"BOB": TEST, "ANN": TEST}}


def hdf5(folder, halves=HALVES):
    return write_hdf5(folder, halves)


def sqlite(folder, halves=HALVES):
    write_sqlite(folder / "shakespeare.sqlite", halves)
    return folder


def packed_lzma(folder, halves=HALVES):
    plain = write_sqlite(folder / "shakespeare.sqlite", halves)
    (folder / "shakespeare.sqlite.lzma").write_bytes(lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE))
    plain.unlink()
    return folder


@pytest.mark.parametrize("make", [hdf5, sqlite, packed_lzma])
def test_snippets_are_joined_as_leaf_joins_them(tmp_path, make):
    packed = read_shakespeare(make(tmp_path))
    assert packed.arrays["client_names"].tolist() == ["ANN", "BOB"]
    said = "My lord, the Duke of York is gone to bed. He rose not up again, and will not rise at all today. "
    data = window_data(packed.arrays, "here")
    assert [data.size(c) for c in range(2)] == [len(said) - 80, 105 - 80]
    x, y = data.train.batch(np.arange(data.size(0)))
    assert decode(x[0].numpy()) == said[:80]
    assert decode(y.numpy()) == said[80:]
    assert decode(data.test.batch(np.array([0]))[0][0].numpy()) == TEST[0].decode()[:80]
    assert packed.meta["format"] == ("tff-hdf5" if make is hdf5 else "tff-sqlite")
    assert packed.notes == ()


@pytest.mark.parametrize("make", [hdf5, sqlite])
def test_short_texts_and_unknown_characters_are_reported(tmp_path, make):
    odd = [ANN[0] * 5 + b"@_"]
    packed = read_shakespeare(make(tmp_path, {"train": {"A": odd, "C": [b"Ay."]}, "test": {"A": TEST, "C": TEST}}))
    assert packed.arrays["client_names"].tolist() == ["A"]
    assert packed.notes[0].startswith("replaced: 2 of ")
    assert packed.notes[1] == "left out: 1 users with too little text"
    with pytest.raises(DataError, match="characters are none of the paper's 79; this is another text"):
        read_shakespeare(make(tmp_path, {"train": {"A": [b"\x01\xff#" * 99]}, "test": {"A": TEST}}))


@pytest.mark.parametrize("make", [hdf5, sqlite])
def test_the_rules_for_clients_hold_here_too(tmp_path, make):
    halves = {"train": {"A": ANN, "B": BOB}, "test": {"A": TEST}}
    with pytest.raises(DataError, match="user 'B' has train samples but no test samples"):
        read_shakespeare(make(tmp_path, halves))
    packed = read_shakespeare(tmp_path, rules=ClientRules(drop_incomplete=True))
    assert packed.arrays["client_names"].tolist() == ["A"]


def database(folder, *statements):
    path = folder / "shakespeare.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as made:
        for statement, *values in statements:
            made.execute(statement, values)
    made.close()
    return folder


COLUMNS = "(split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
TABLE = (f"CREATE TABLE examples {COLUMNS}",)
INSERT = "INSERT INTO examples VALUES (?, ?, ?)"


@pytest.mark.parametrize(
    ("statements", "match"),
    [
        ([("CREATE TABLE other (a)",)], "has no table 'examples' of its own"),
        ([("CREATE VIEW examples AS SELECT 'train' AS split_name",)], "has no table 'examples' of its own"),
        ([("CREATE TABLE examples (a)",)], "is not a complete SQLite file of TFF .*no such column"),
        (
            [TABLE, (INSERT, "train", None, b"")],
            r"row 1 of examples: split_name, client_id, .* must be text, text and byt",
        ),
        ([TABLE, (INSERT, "train", "a", "text")], "must be text, text and bytes"),
        ([TABLE, (INSERT, "train", "a", b"")], "row 1 of examples has no 'snippets'"),
        ([TABLE, (INSERT, "train", "a", example(tokens=[b"x"]))], "has no 'snippets'; is this another data set"),
        ([TABLE, (INSERT, "train", "a", example(snippets=[b"x", b"y"]))], "'snippets' is not one string in a"),
        ([TABLE, (INSERT, "train", "a", example(snippets=[b"x" * 99])[:-3])], "not one string .*cut short"),
        ([TABLE, (INSERT, "train", "a", b"\xff" * 20)], "not one string .*more than 64 bits"),
        ([TABLE, (INSERT, "train", "a", b"\x0f")], r"not one string .*wire type 7"),
        ([TABLE, (INSERT, "held-out", "a", example(snippets=[b"x"]))], "has the split 'held-out'; Shakespeare's are"),
    ],
)
def test_other_databases(tmp_path, statements, match):
    with pytest.raises(DataError, match=match):
        read_shakespeare(database(tmp_path, *statements))


def test_other_fields_of_a_message_are_skipped(tmp_path):
    extra = (
        varint(9 << 3) + varint(300) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4) + field(9, b"?")
    )
    rows = [(INSERT, split, "A", extra + example(other=[b"x"], snippets=TEST) + extra) for split in ("train", "test")]
    assert read_shakespeare(database(tmp_path, TABLE, *rows)).arrays["client_names"].tolist() == ["A"]


def test_a_database_with_a_write_ahead_log(tmp_path):
    made = sqlite3.connect(sqlite(tmp_path) / "shakespeare.sqlite")
    made.execute("PRAGMA journal_mode = WAL")
    made.close()
    assert (tmp_path / "shakespeare.sqlite").read_bytes()[18] == 2
    assert read_shakespeare(tmp_path).arrays["client_names"].tolist() == ["ANN", "BOB"]


def test_several_databases_are_not_guessed_between(tmp_path):
    sqlite(tmp_path)
    (tmp_path / "copy.sqlite").write_bytes((tmp_path / "shakespeare.sqlite").read_bytes())
    with pytest.raises(DataError, match=r"has several SQLite files: copy\.sqlite, shakespeare\.sqlite"):
        read_shakespeare(tmp_path)


def test_snippets_of_other_kinds_in_hdf5(tmp_path, monkeypatch):
    hdf5(tmp_path)
    with h5py.File(tmp_path / "shakespeare_test.h5", "w") as file:
        file["examples/ANN/snippets"] = [1, 2]
    with pytest.raises(DataError, match=r"shakespeare_test\.h5: client 'ANN' has snippets that are not strings"):
        read_shakespeare(tmp_path)
    (tmp_path / "shakespeare_test.h5").unlink()
    with pytest.raises(
        DataError, match="has 0 HDF5 files with 'test' in their names, where one is needed; TFF's are shakespeare_train"
    ):
        read_shakespeare(tmp_path)
    monkeypatch.setattr("fedgbo.data.shakespeare.LARGEST_TEXT", 150)
    with pytest.raises(DataError, match=r"shakespeare_train\.h5 has more than 150 bytes of snippets; refused"):
        read_shakespeare(tmp_path)


@pytest.mark.parametrize("make", [hdf5, sqlite])
def test_any_damage_is_our_own_error(tmp_path, make):
    """Flip and cut bytes at random: the result is data or our own error, never anything else."""
    make(tmp_path)
    path, rng = next(path for path in sorted(tmp_path.iterdir()) if "test" not in path.name), np.random.default_rng(0)
    content, refused = path.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(content[: rng.integers(1, len(content))] if rng.random() < 0.3 else content)
        for at in rng.integers(0, min(len(damaged), 3000), rng.integers(1, 6)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_shakespeare(tmp_path)
        except FedGBOError:
            refused += 1
    assert refused > 20
