import sys

import h5py
import numpy as np
import pytest

from fedgbo.core.errors import DataError, MissingExtraError
from fedgbo.data.femnist import read_femnist
from fedgbo.data.public import ClientRules

from .leaf_samples import write

RNG = np.random.default_rng(0)
WRITERS = {f"f{k:04}_{k}": (RNG.integers(256, size=(k + 2, 784)), RNG.integers(62, size=k + 2)) for k in range(4)}


def leaf(folder, writers, roles=("train", "test")):
    for role in roles:
        names = list(writers) if role == "train" else list(writers)[::-1]  # another order must not matter
        for part, some in enumerate((names[:2], names[2:])):
            data = {n: ((writers[n][0] / 255).tolist(), writers[n][1].tolist()) for n in some}
            write(folder / role / f"all_data_{part}_niid_06_keep_15_{role}_8.json", data)
    return folder


def tff(folder, writers, roles=("train", "test")):
    folder.mkdir(exist_ok=True)
    for role in roles:
        with h5py.File(folder / f"fed_emnist_{role}.h5", "w") as file:
            for name, (pixels, labels) in writers.items():
                group = file.create_group(f"examples/{name}")
                group["pixels"] = (pixels / 255).astype(np.float32).reshape(-1, 28, 28)
                group["label"] = labels.astype(np.int32)
    return folder


@pytest.mark.parametrize("make", [leaf, tff])
def test_reads_pixels_labels_and_writers_exactly(tmp_path, make):
    packed = read_femnist(make(tmp_path / "data", WRITERS))
    names = list(WRITERS)
    for half in ("train", "test"):
        images, labels = packed.arrays[f"{half}_images"], packed.arrays[f"{half}_labels"]
        assert (images.dtype, labels.dtype) == (np.uint8, np.uint8)
        np.testing.assert_array_equal(images, np.concatenate([WRITERS[n][0] for n in names]).reshape(-1, 1, 28, 28))
        np.testing.assert_array_equal(labels, np.concatenate([WRITERS[n][1] for n in names]))
        assert packed.arrays[f"{half}_offsets"].tolist() == [0, 2, 5, 9, 14]
    assert packed.arrays["client_names"].tolist() == names
    assert packed.meta["task"] == "femnist"
    assert packed.meta["synthetic"] is False


def test_pixels_of_few_digits_are_rounded_to_the_nearest_byte(tmp_path):
    for role in ("train", "test"):
        write(tmp_path / role / "a.json", {"ann": ([[0.0039, 0.9961, 0.502] + [1] * 781], [3])})
    assert read_femnist(tmp_path).arrays["train_images"].reshape(-1)[:4].tolist() == [1, 254, 128, 255]


def one(x, y):
    return {"ann": (np.asarray(x), np.asarray(y))}


@pytest.mark.parametrize("make", [leaf, tff])
@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ([[0.0] * 784, [256.0] * 784], [1, 1], r"user 'ann' in .*train.*: sample 1 has a pixel outside 0 \.\.\. 1"),
        ([[np.nan] * 784], [1], r"sample 0 has a pixel outside"),
        ([[0] * 784], [62], r"sample 0 has the label 62; FEMNIST's are 0 \.\.\. 61"),
        ([[0] * 784], [-1], r"sample 0 has the label -1"),
    ],
)
def test_values_out_of_range_are_named(tmp_path, make, x, y, match):
    with pytest.raises(DataError, match=match):
        read_femnist(make(tmp_path, one(x, y)))


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ([[0.0] * 783], [1], "an image has 783 numbers"),
        ([[0.0] * 784, [0.0]], [1, 1], "the images are not 784 numbers each"),
        (["abc"], [1], "the images are not 784 numbers each"),
        ([[0.0] * 784], ["a"], "the labels are not one whole number each"),
        ([[0.0] * 784], [1.5], r"sample 0 has the label 1\.5"),
    ],
)
def test_wrong_kinds_in_leaf_json(tmp_path, x, y, match):
    for role in ("train", "test"):
        write(tmp_path / role / "a.json", {"ann": (x, y)})
    with pytest.raises(DataError, match=f"user 'ann' in .*a.json.*{match}"):
        read_femnist(tmp_path)


def test_train_and_test_of_different_draws(tmp_path):
    leaf(tmp_path, WRITERS, ["train"])
    leaf(tmp_path, dict(list(WRITERS.items())[1:]), ["test"])
    with pytest.raises(DataError, match="user 'f0000_0' has train samples but no test samples"):
        read_femnist(tmp_path)


def test_hdf5_of_another_kind(tmp_path):
    tff(tmp_path, WRITERS)
    with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
        file["examples/ann/tokens"] = [1, 2]
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5: client 'ann' has no array 'pixels' of its own"):
        read_femnist(tmp_path)
    with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
        file["other"] = [1]
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5 has no group 'examples'"):
        read_femnist(tmp_path)
    with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
        file["examples/ann/pixels"], file["examples/ann/label"] = np.ones((2, 28, 28)), [1]
    with pytest.raises(DataError, match=r"client 'ann' has unequal numbers of samples: 2 of pixels, 1 of label"):
        read_femnist(tmp_path)
    with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
        file["examples/ann/pixels"], file["examples/ann/label"] = np.ones((0, 28, 28)), np.ones(0)
    with pytest.raises(DataError, match=r"user 'ann' has no samples"):
        read_femnist(tmp_path)
    (tmp_path / "fed_emnist_test.h5").write_bytes((tmp_path / "fed_emnist_train.h5").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5 is not a complete HDF5 file"):
        read_femnist(tmp_path)
    (tmp_path / "fed_emnist_test.h5").unlink()
    with pytest.raises(DataError, match="has 0 HDF5 files with 'test' in their names"):
        read_femnist(tmp_path)


@pytest.mark.parametrize("make", [leaf, tff])
def test_incomplete_small_and_split_by_user(tmp_path, make):
    names = list(WRITERS)
    make(tmp_path, WRITERS, ["train"])
    make(tmp_path, {name: WRITERS[name] for name in names[1:]}, ["test"])
    packed = read_femnist(tmp_path, rules=ClientRules(drop_incomplete=True, min_samples=7))
    assert packed.arrays["client_names"].tolist() == names[2:]
    assert packed.notes == (
        "left out: 1 users without train or test samples (2 samples)",
        "left out: 1 users with fewer than 7 samples (6 samples)",
    )
    make(tmp_path / "other", {name: WRITERS[name] for name in names[:3]}, ["train"])
    make(tmp_path / "other", {name: WRITERS[name] for name in names[3:]}, ["test"])
    packed = read_femnist(tmp_path / "other", rules=ClientRules(by_user=True))
    assert packed.arrays["client_names"].tolist() == names[:3]
    assert packed.arrays["test_labels"].tolist() == WRITERS[names[3]][1].tolist()
    assert "test_offsets" not in packed.arrays


def test_two_formats_are_not_guessed_between(tmp_path):
    tff(leaf(tmp_path, WRITERS), WRITERS)
    with pytest.raises(DataError, match="has files of several formats: leaf, tff; choose one with --format"):
        read_femnist(tmp_path)
    assert read_femnist(tmp_path, format="tff").meta["format"] == "tff"


def test_numbers_beyond_every_type(tmp_path):
    for x, y, match in (
        ([[10**400] * 784], [1], "the images are not 784 numbers each"),
        ([[0.5] * 784] * 2, [[1], [1, 2]], "the labels are not one whole number each"),
        ([[0.5] * 784], [10**30], "the labels are not one whole number each"),
    ):
        for role in ("train", "test"):
            write(tmp_path / role / "a.json", {"ann": (x, y)})
        with pytest.raises(DataError, match=match):
            read_femnist(tmp_path)


def test_hdf5_cannot_read_other_files(tmp_path):
    """Links, external and virtual storage could read any file of the user's."""
    tff(tmp_path, WRITERS)
    (tmp_path / "secret").write_bytes(bytes(8 * 784))
    layout = h5py.VirtualLayout((1, 28, 28), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (1, 28, 28))

    def external(group):
        group.create_dataset("pixels", (1, 28, 28), "f8", external=[(str(tmp_path / "secret"), 0, 8 * 784)])

    def link(group):
        group["pixels"] = h5py.ExternalLink(str(tmp_path / "fed_emnist_train.h5"), "/examples/f0000_0/pixels")

    for make in (external, link, lambda group: group.create_virtual_dataset("pixels", layout)):
        with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
            group = file.create_group("examples/ann")
            make(group)
            group["label"] = [1]
        with pytest.raises(DataError, match="client 'ann' has no array 'pixels' of its own"):
            read_femnist(tmp_path)


def test_hdf5_that_declares_too_much(tmp_path, monkeypatch):
    tff(tmp_path, WRITERS)
    with h5py.File(tmp_path / "fed_emnist_test.h5", "w") as file:
        group = file.create_group("examples/ann")
        group.create_dataset("pixels", (1, 28, 28), "f4", chunks=(10**6, 28, 28), maxshape=(None, 28, 28))
        group["label"] = [1]
    with pytest.raises(DataError, match="'pixels' declares 3,136,000,000 bytes, more than any public file"):
        read_femnist(tmp_path)
    monkeypatch.setattr("fedgbo.data.tff.LIMIT", 10_000)
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5 declares more than 10,000 bytes in all; refused"):
        read_femnist(tmp_path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    tff(tmp_path, WRITERS)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgbo\[data\]'"):
        read_femnist(tmp_path)
