import gzip
import pickle
import struct

import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data import labelled_images
from fedgbo.data.labelled_images import read_cifar10, read_fashion_mnist

RNG = np.random.default_rng(0)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def fashion(folder, train=(30, 28, 28), labels=10, suffix=".gz", pack=gzip.compress, dot="-"):
    """Write the four files; return the pixels and labels of each half."""
    folder.mkdir(exist_ok=True)
    made = {}
    for half, shape in (("train", train), ("t10k", (12, 28, 28))):
        made[half] = RNG.integers(256, size=shape), RNG.integers(labels, size=shape[0])
        (folder / f"{half}-images{dot}idx3-ubyte{suffix}").write_bytes(pack(idx(made[half][0])))
        (folder / f"{half}-labels{dot}idx1-ubyte{suffix}").write_bytes(pack(idx(made[half][1])))
    return made


@pytest.mark.parametrize("options", [{}, {"suffix": "", "pack": bytes}, {"dot": "."}])
def test_fashion_mnist(tmp_path, options):
    made = fashion(tmp_path, **options)
    packed = read_fashion_mnist(tmp_path)
    for half, stored in (("train", "train"), ("t10k", "test")):
        np.testing.assert_array_equal(packed.arrays[f"{stored}_images"][:, 0], made[half][0])
        np.testing.assert_array_equal(packed.arrays[f"{stored}_labels"], made[half][1])
        assert packed.arrays[f"{stored}_images"].dtype == packed.arrays[f"{stored}_labels"].dtype == np.uint8
    assert packed.meta["format"] == "idx"


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train-images", b"", "is not an IDX file of bytes in 3 dimensions"),
        ("train-images", b"\0\0\x08\x03\0\0", "is not an IDX file of bytes in 3 dimensions"),
        ("train-images", idx(np.zeros(30)), "is not an IDX file of bytes in 3 dimensions"),
        ("train-images", b"\0\0\x0d\x03" + bytes(12), "is not an IDX file of bytes"),
        ("train-images", idx(np.zeros((30, 28, 28)))[:-1], "declares 30 x 28 x 28 bytes and has 23519: damaged"),
        ("train-images", idx(np.zeros((30, 28, 28))) + b"x", "declares 30 x 28 x 28 bytes and has 23521"),
        ("train-images", b"\0\0\x08\x03" + b"\xff" * 12, "declares 4294967295 x 4294967295 x 4294967295 bytes and"),
        ("train-images", idx(np.zeros((30, 27, 28))), "has images of 27x28 pixels; Fashion-MNIST's have 28x28"),
        ("train-images", idx(np.zeros((29, 28, 28))), "30 labels for 29 images"),
        ("train-labels", idx(np.full(30, 10)), "sample 0 has label 10, outside 0 ... 9"),
        ("t10k-labels", idx(np.zeros(11)), "11 labels for 12 images"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, name, content, match):
    fashion(tmp_path, suffix="", pack=bytes)
    (path,) = tmp_path.glob(f"{name}*")
    path.write_bytes(content)
    with pytest.raises(DataError, match=match) as caught:
        read_fashion_mnist(tmp_path)
    assert str(path.with_name(name.split("-")[0])) in str(caught.value)


def test_missing_empty_double_and_too_large_files(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="it has no files, and needs: train-images-idx3-ubyte, train-labels-idx1-ubyte"):
        read_fashion_mnist(tmp_path)
    fashion(tmp_path)
    with pytest.raises(ConfigError, match="unknown format 'csv'"):
        read_fashion_mnist(tmp_path, format="csv")
    monkeypatch.setattr(labelled_images, "MOST", 20)
    with pytest.raises(DataError, match="has more than 0 MiB after decompression; refused"):
        read_fashion_mnist(tmp_path)
    monkeypatch.undo()
    fashion(tmp_path / "copy")
    with pytest.raises(DataError, match="has several files named train-images-idx3-ubyte"):
        read_fashion_mnist(tmp_path)
    (tmp_path / "copy" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        DataError, match="has no file t10k-labels-idx1-ubyte; all of t10k-images-idx3-ubyte, t10k-labels"
    ):
        read_fashion_mnist(tmp_path / "copy")
    fashion(tmp_path / "void", train=(0, 28, 28))
    with pytest.raises(DataError, match="has no samples"):
        read_fashion_mnist(tmp_path / "void")


def cifar(folder, form="python", rows=4):
    folder.mkdir(exist_ok=True)
    pixels, labels = RNG.integers(256, size=(6 * rows, 3072), dtype=np.uint8), RNG.integers(10, size=6 * rows)
    for k, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        part = slice(k * rows, (k + 1) * rows)
        if form == "python":
            content = pickle.dumps({b"data": pixels[part], b"labels": labels[part].tolist(), b"batch_label": b"x"}, 2)
        else:
            name += ".bin"
            content = np.concatenate([labels[part, None].astype(np.uint8), pixels[part]], axis=1).tobytes()
        (folder / name).write_bytes(content)
    return pixels.reshape(-1, 3, 32, 32), labels


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar10(tmp_path, form):
    pixels, labels = cifar(tmp_path, form)
    packed = read_cifar10(tmp_path)
    np.testing.assert_array_equal(packed.arrays["train_images"], pixels[:20])
    np.testing.assert_array_equal(packed.arrays["test_images"], pixels[20:])
    np.testing.assert_array_equal(packed.arrays["train_labels"], labels[:20])
    np.testing.assert_array_equal(packed.arrays["test_labels"], labels[20:])
    assert packed.meta["format"] == form


def test_two_formats_of_cifar10_are_not_guessed_between(tmp_path):
    cifar(tmp_path, "python")
    _, labels = cifar(tmp_path, "binary")
    with pytest.raises(DataError, match="has files of several formats: python, binary; choose one with --format"):
        read_cifar10(tmp_path)
    assert read_cifar10(tmp_path, format="binary").arrays["test_labels"].tolist() == labels[20:].tolist()
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"has no file data_batch_3\.bin; all of data_batch_1\.bin"):
        read_cifar10(tmp_path, format="binary")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"labels": [1]}, "data_batch_2 has no 'data'"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "data_batch_2 has no 'labels'"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, r"data must be bytes of shape \(samples, 3072\)"),
        ({"data": [[0] * 3072], "labels": [1]}, "data must be bytes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "sample 0 has label 10, outside 0 ... 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["a"]}, "must be one column of whole numbers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "1 labels for 2 images"),
    ],
)
def test_damaged_pickles_are_named(tmp_path, content, match):
    cifar(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(DataError, match=match):
        read_cifar10(tmp_path)


def test_a_binary_file_that_breaks_off(tmp_path):
    cifar(tmp_path, "binary")
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 + 5))
    with pytest.raises(DataError, match=r"test_batch\.bin has 3078 bytes, .* \(it breaks off in row 1\); get it again"):
        read_cifar10(tmp_path)
