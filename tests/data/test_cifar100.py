import bz2
import gzip
import io
import lzma
import pickle
import sys
import tarfile

import h5py
import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError, MissingExtraError
from fedgbo.data import cifar100
from fedgbo.data.cifar100 import read_cifar100

NAMES = [f"class{k}" for k in range(100)]


def part(count, seed):
    rng = np.random.default_rng(seed)
    fine = rng.permutation(np.arange(count) % 100)
    return {"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8), "fine": fine, "coarse": fine // 5}


TRAIN, TEST = part(400, 0), part(100, 1)


def quick_xz(content):
    return lzma.compress(content, preset=0)


def pickled(part, **changes):
    content = {
        "filenames": [f"a_{k}.png" for k in range(len(part["fine"]))],
        "fine_labels": part["fine"].tolist(),
        "coarse_labels": part["coarse"].tolist(),
        "data": part["data"],
    }
    return pickle.dumps(content | changes, 2)


def binary(part):
    columns = [part["coarse"][:, None].astype(np.uint8), part["fine"][:, None].astype(np.uint8), part["data"]]
    return np.concatenate(columns, axis=1).tobytes()


def python_files():
    return {"train": pickled(TRAIN), "test": pickled(TEST), "meta": pickle.dumps({"fine_label_names": NAMES}, 2)}


def binary_files():
    names = "\n".join(NAMES).encode()
    return {"train.bin": binary(TRAIN), "test.bin": binary(TEST), "fine_label_names.txt": names}


def lay_down(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def hdf5(path, clients, **replaced):
    with h5py.File(path, "w") as file:
        for name, part in clients.items():
            group = file.create_group(f"examples/{name}")
            fields = {
                "image": part["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
                "label": part["fine"].astype(np.int64),
                "coarse_label": part["coarse"].astype(np.int64),
            }
            for field, values in (fields | replaced).items():
                group[field] = values


def read(source, clients=20, samples=20, **more):
    return read_cifar100(source, clients=clients, samples=samples, **more)


def check_split(packed):
    """All images of TRAIN are there once, with their labels, 20 x 20, and the test images are as they were."""
    arrays = packed.arrays
    assert arrays["train_offsets"].tolist() == list(range(0, 401, 20))
    assert arrays["train_images"].shape == (400, 3, 32, 32)
    assert {arrays[name].dtype for name in arrays if name != "train_offsets"} == {np.dtype(np.uint8)}
    rows = {image.tobytes(): fine for image, fine in zip(TRAIN["data"], TRAIN["fine"], strict=True)}
    seen = [rows[image.tobytes()] for image in arrays["train_images"]]
    assert seen == arrays["train_labels"].tolist()
    assert len({image.tobytes() for image in arrays["train_images"]}) == 400
    np.testing.assert_array_equal(arrays["test_images"].reshape(100, -1), TEST["data"])
    np.testing.assert_array_equal(arrays["test_labels"], TEST["fine"])
    assert packed.meta["task"] == "cifar100"
    assert packed.meta["synthetic"] is False
    assert packed.meta["split"] == "Pachinko allocation, 20 clients x 20 samples, seed 0"
    assert packed.meta["classes"] == NAMES


def test_python_folder(tmp_path):
    packed = read(lay_down(tmp_path / "cifar-100-python", python_files()))
    check_split(packed)
    assert packed.meta["format"] == "cifar-100-python"
    coarse = packed.arrays["train_labels"].reshape(20, 20) // 5
    assert np.mean([len(np.unique(labels)) for labels in coarse]) < 10  # of 20: clients differ


def test_folder_that_holds_the_folder(tmp_path):
    lay_down(tmp_path / "data" / "cifar-100-python", python_files())
    check_split(read(tmp_path))


def test_compressed_and_in_parts_as_handed_round(tmp_path):
    files = python_files()
    whole = quick_xz(files["train"])
    half = len(whole) // 2
    parts = {"train.xz.part-00": whole[:half], "train.xz.part-01": whole[half:]}
    lay_down(tmp_path, {**parts, "test.xz": quick_xz(files["test"]), "meta": files["meta"]})
    check_split(read(tmp_path))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, quick_xz])
@pytest.mark.parametrize("files", [python_files, binary_files])
def test_archive(tmp_path, files, compress):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files().items():
            info = tarfile.TarInfo(f"cifar-100/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path = tmp_path / "cifar-100.tar.gz"
    path.write_bytes(compress(stream.getvalue()))
    check_split(read(path))


def test_binary_folder(tmp_path):
    packed = read(lay_down(tmp_path, binary_files()))
    check_split(packed)
    assert packed.meta["format"] == "cifar-100-binary"


def test_seed_draws_the_split(tmp_path):
    lay_down(tmp_path, binary_files())
    first, again, other = (read(tmp_path, seed=seed).arrays["train_labels"] for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_tff_keeps_its_clients(tmp_path):
    parts = {name: part(count, count) for name, count in (("10", 7), ("9", 5), ("0", 3))}
    hdf5(tmp_path / "fed_cifar100_train.h5", parts)
    hdf5(tmp_path / "fed_cifar100_test.h5", {"0": part(4, 1), "1": part(2, 2)})
    packed = read_cifar100(tmp_path)
    assert packed.arrays["client_names"].tolist() == ["0", "9", "10"]
    assert packed.arrays["train_offsets"].tolist() == [0, 3, 8, 15]
    ten = packed.arrays["train_images"][8:15].reshape(7, 3072)
    np.testing.assert_array_equal(ten, parts["10"]["data"])
    np.testing.assert_array_equal(packed.arrays["train_labels"][8:15], parts["10"]["fine"])
    assert len(packed.arrays["test_images"]) == len(packed.arrays["test_labels"]) == 6
    assert packed.meta["format"] == "fed_cifar100"
    assert packed.meta["split"] == "as in the files"


# What goes wrong


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_malicious_pickle_is_refused_by_name_and_not_run(tmp_path):
    trace = tmp_path / "trace"
    lay_down(tmp_path / "data", python_files() | {"train": pickled(TRAIN, filenames=Touch(trace))})
    with pytest.raises(DataError, match=r"data/train wants to call _?io\.open.*nothing was run"):
        read(tmp_path / "data")
    assert not trace.exists()


@pytest.mark.parametrize("kept", [0, 1, 1000, -1])
def test_truncated_and_empty_pickles(tmp_path, kept):
    lay_down(tmp_path, python_files() | {"test": pickled(TEST)[:kept]})
    with pytest.raises(DataError, match=r"/test cannot be read as a pickle"):
        read(tmp_path)


def test_truncated_xz(tmp_path):
    files = python_files()
    lay_down(tmp_path, {"train.xz": quick_xz(files["train"])[:-5000], "test": files["test"]})
    with pytest.raises(DataError, match=r"/train\.xz cannot be read.*(cut short|ended before)"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": TRAIN["data"][:, :100].copy()}, r"train: data must be bytes of shape \(samples, 3072\)"),
        ({"data": TRAIN["data"].astype(np.int64)}, "data must be bytes"),
        ({"data": [1, 2]}, "data must be bytes"),
        ({"data": TRAIN["data"][:399]}, "train has 399 images, 400 fine and 400 coarse labels"),
        ({"fine_labels": [0] * 399 + [100]}, r"fine_labels: sample 399 has label 100, outside 0 ... 99"),
        ({"coarse_labels": [-1] + [0] * 399}, r"coarse_labels: sample 0 has label -1, outside 0 ... 19"),
        ({"fine_labels": ["a"] * 400}, "fine_labels must be one column of whole numbers"),
        ({"fine_labels": 3}, "fine_labels must be one column of whole numbers"),
        ({"coarse_labels": [*range(20)] * 20}, r"train: fine label \d+ lies under two coarse labels"),
    ],
)
def test_pickles_with_wrong_content(tmp_path, changes, message):
    lay_down(tmp_path, python_files() | {"train": pickled(TRAIN, **changes)})
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_pickle_of_something_else(tmp_path):
    lay_down(tmp_path, python_files() | {"train": pickle.dumps({"data": TRAIN["data"], "labels": [1]})})
    with pytest.raises(DataError, match="train has no 'fine_labels'"):
        read(tmp_path)


def test_names_of_too_few_classes(tmp_path):
    lay_down(tmp_path, python_files() | {"meta": pickle.dumps({"fine_label_names": NAMES[:99]})})
    with pytest.raises(DataError, match="meta does not have the names of 100 classes"):
        read(tmp_path)


def test_binary_cut_short_inside_a_row(tmp_path):
    lay_down(tmp_path, binary_files() | {"train.bin": binary(TRAIN)[: 3074 * 5 + 17]})
    with pytest.raises(DataError, match=r"train\.bin has 15387 bytes.*breaks off in row 5"):
        read(tmp_path)


def test_cut_short_between_rows_and_empty(tmp_path):
    lay_down(tmp_path, binary_files() | {"train.bin": binary(TRAIN)[: 3074 * 5]})
    with pytest.raises(DataError, match=r"train\.bin has 5 images, too few for 20 clients with 20 each"):
        read(tmp_path)
    lay_down(tmp_path, {"test.bin": b""})
    with pytest.raises(DataError, match=r"test\.bin has no samples"):
        read(tmp_path)


def test_half_a_data_set_and_none(tmp_path):
    lay_down(tmp_path, {"train": pickled(TRAIN)})
    with pytest.raises(DataError, match="has train but not test; cifar-100-python needs both"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"it has notes\.txt, and needs: fed_cifar100_train\.h5"):
        read(lay_down(tmp_path / "other", {"notes.txt": b"hello"}))
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="it has no files"):
        read(tmp_path / "void")
    with pytest.raises(DataError, match="absent does not exist"):
        read(tmp_path / "absent")


def test_two_formats_and_two_copies_are_not_guessed_between(tmp_path):
    lay_down(tmp_path, python_files() | binary_files())
    with pytest.raises(
        DataError, match="several formats: cifar-100-python, cifar-100-binary; choose one with --format"
    ):
        read(tmp_path)
    assert read(tmp_path, format="cifar-100-binary").meta["format"] == "cifar-100-binary"
    lay_down(tmp_path / "copy", binary_files())
    with pytest.raises(
        DataError, match=r"has several files named train\.bin: .*copy/train\.bin.*; give the path of one"
    ):
        read(tmp_path, format="cifar-100-binary")


def test_too_many_images_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "MOST", 300)
    with pytest.raises(DataError, match=r"train\.bin has more than 1 MiB after decompression"):
        read(lay_down(tmp_path, binary_files()))
    with h5py.File(tmp_path / "fed_cifar100_train.h5", "w") as file:
        file["examples/0/image"], file["examples/0/label"] = np.zeros((301, 32, 32, 3), np.uint8), np.zeros(301, int)
    hdf5(tmp_path / "fed_cifar100_test.h5", GOOD)
    with pytest.raises(DataError, match="declares 301 images, CIFAR-100 has 300"):
        read(tmp_path, format="fed_cifar100")


def test_impossible_split(tmp_path):
    with pytest.raises(ConfigError, match="clients must be a whole number"):
        read(tmp_path, clients=0)


GOOD = {"0": part(3, 0)}


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"label": np.zeros(2, dtype=int)}, "client '0' has unequal numbers of samples: 3 of image, 2 of label"),
        ({"image": np.zeros((0, 32, 32, 3), np.uint8), "label": np.zeros(0, int)}, "client '0' has no samples"),
        ({"image": np.zeros((3, 32, 32, 3))}, r"images that are float64 of shape \(3, 32, 32, 3\), not uint8"),
        ({"image": np.zeros((3, 28, 28), np.uint8)}, r"not uint8 \(n, 32, 32, 3\)"),
        ({"label": np.array([0, 1, 100])}, r"client '0': label: sample 2 has label 100"),
        ({"label": h5py.ExternalLink("other.h5", "/x")}, "client '0' has no array 'label' of its own"),
        ({"label": h5py.SoftLink("/examples/0/coarse_label")}, "client '0' has no array 'label' of its own"),
    ],
)
def test_hdf5_with_wrong_content(tmp_path, replaced, message):
    hdf5(tmp_path / "fed_cifar100_train.h5", GOOD, **replaced)
    hdf5(tmp_path / "fed_cifar100_test.h5", GOOD)
    with pytest.raises(DataError, match=r"fed_cifar100_train\.h5: .*" + message):
        read_cifar100(tmp_path)


def test_hdf5_that_declares_too_much(tmp_path):
    with h5py.File(tmp_path / "fed_cifar100_train.h5", "w") as file:
        file.create_dataset("examples/0/image", (10**9, 32, 32, 3), np.uint8, chunks=(1, 32, 32, 3))
        file.create_dataset("examples/0/label", (10**9,), np.int64, chunks=(10,))
    hdf5(tmp_path / "fed_cifar100_test.h5", GOOD)
    with pytest.raises(
        DataError, match="client '0': 'image' declares 3,072,000,000,000 bytes, more than any public file"
    ):
        read_cifar100(tmp_path)


def test_hdf5_damaged_empty_or_without_clients(tmp_path):
    hdf5(tmp_path / "fed_cifar100_train.h5", GOOD)
    test = tmp_path / "fed_cifar100_test.h5"
    for content in (b"", b"nonsense", (tmp_path / "fed_cifar100_train.h5").read_bytes()[:2000]):
        test.write_bytes(content)
        with pytest.raises(DataError, match=r"fed_cifar100_test\.h5 is not a complete HDF5 file"):
            read_cifar100(tmp_path)
    with h5py.File(test, "w") as file:
        file["numbers"] = np.arange(3)
    with pytest.raises(DataError, match="has no group 'examples' with clients"):
        read_cifar100(tmp_path)


def test_hdf5_with_any_byte_changed_is_read_or_refused(tmp_path):
    train, rng = tmp_path / "fed_cifar100_train.h5", np.random.default_rng(0)
    hdf5(train, GOOD)
    hdf5(tmp_path / "fed_cifar100_test.h5", GOOD)
    whole, refused = train.read_bytes(), []
    for _ in range(100):
        content = bytearray(whole)
        for place in rng.integers(6000, size=10):
            content[place] = rng.integers(256)
        train.write_bytes(content)
        try:
            read_cifar100(tmp_path)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all("fed_cifar100_train.h5" in message for message in refused)


def test_hdf5_without_the_library(tmp_path, monkeypatch):
    hdf5(tmp_path / "fed_cifar100_train.h5", GOOD)
    hdf5(tmp_path / "fed_cifar100_test.h5", GOOD)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedgbo\[data\]'"):
        read_cifar100(tmp_path)
