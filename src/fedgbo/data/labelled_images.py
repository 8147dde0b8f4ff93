"""Reads public images that come without clients: Fashion-MNIST (Xiao et al., 2017) and CIFAR-10 (Krizhevsky, 2009).

fashion-mnist   train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
cifar10         data_batch_1 ... data_batch_5 and test_batch: pickles, or .bin files of rows of a label and the pixels

The tasks deal the samples to clients when they are opened.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedgbo.core import DataError
from fedgbo.data.archives import SourceFile, only_file
from fedgbo.data.cifar100 import PIXELS, SHAPE, by_name, byte_rows, checked_labels, pickled_columns
from fedgbo.data.public import pick_format
from fedgbo.data.store import Array, Packed
from fedgbo.data.unpickle import load_plain

CLASSES = 10
SIDE = 28
MOST = 70_000  # images of Fashion-MNIST, and more than CIFAR-10 has
BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
UNSIGNED_BYTE = 8  # IDX's code of the type

Labelled = tuple[Array, Array]  # images (N, C, H, W) and labels (N,), both uint8
Files = dict[str, list[SourceFile]]


def read_fashion_mnist(source: Path, *, format: str | None = None) -> Packed:
    """Read the four IDX files."""
    found = by_name(source)
    files = {name.replace(".idx", "-idx"): some for name, some in found.items()}  # torchvision and Kaggle differ
    names = [f"{half}-{kind}-ubyte" for half in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    pick_format(
        source, files, {"idx": ", ".join(names)}, ["idx"] if any(name in files for name in names) else [], format
    )
    train, test = (_idx_pair(source, _named(source, files, names[k : k + 2])) for k in (0, 2))
    return _packed("fashion-mnist", source, "idx", train, test)


def read_cifar10(source: Path, *, format: str | None = None) -> Packed:
    """Read the pickles or the binary version."""
    files = by_name(source)
    present = [name for name, suffix in (("python", ""), ("binary", ".bin")) if f"test_batch{suffix}" in files]
    described = {"python": "data_batch_1 ... 5 and test_batch", "binary": "data_batch_1.bin ... 5 and test_batch.bin"}
    format = pick_format(source, files, described, present, format)
    suffix = ".bin" if format == "binary" else ""
    read: Callable[[SourceFile], Labelled] = _read_binary if format == "binary" else _read_pickle
    batches = [read(file) for file in _named(source, files, [name + suffix for name in BATCHES])]
    (test,) = (read(file) for file in _named(source, files, [f"test_batch{suffix}"]))
    train = np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])
    return _packed("cifar10", source, format, train, test)


def _named(source: Path, files: Files, names: Sequence[str]) -> list[SourceFile]:
    for name in names:
        if name not in files:
            raise DataError(f"{source} has no file {name}; all of {', '.join(names)} are needed")
    return [only_file(source, files[name], f"files named {name}") for name in names]


def _packed(task: str, source: Path, format: str, train: Labelled, test: Labelled) -> Packed:
    arrays = {"train_images": train[0], "train_labels": train[1], "test_images": test[0], "test_labels": test[1]}
    return Packed(arrays, {"task": task, "source": str(source), "synthetic": False, "format": format})


def _idx_pair(source: Path, files: list[SourceFile]) -> Labelled:
    images, labels = _read_idx(files[0], 3), _read_idx(files[1], 1)
    if images.shape[1:] != (SIDE, SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{files[0].where} has images of {size} pixels; Fashion-MNIST's have {SIDE}x{SIDE}")
    return _labelled(images[:, None], checked_labels(labels, CLASSES, files[1].where), files[1].where)


def _read_idx(source: SourceFile, dimensions: int) -> Array:
    """Read an IDX file: two zeros, the type, the number of dimensions, each dimension (big-endian), the bytes."""
    most = MOST * SIDE * SIDE
    with source.open(most + 64) as stream:
        head, content = stream.read(4 + 4 * dimensions), stream.read()
    if head[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]) or len(head) < 4 + 4 * dimensions:
        raise DataError(f"{source.where} is not an IDX file of bytes in {dimensions} dimensions; get it again")
    shape = [int.from_bytes(head[k : k + 4], "big") for k in range(4, len(head), 4)]
    if math.prod(shape) != len(content):
        found = f"{source.where} declares {' x '.join(map(str, shape))} bytes and has {len(content)}"
        raise DataError(f"{found}: damaged or cut short; get it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_pickle(source: SourceFile) -> Labelled:
    with source.open(MOST * (PIXELS + 64)) as stream:
        content = load_plain(stream, source.where)
    data, values = pickled_columns(content, ("labels",), "CIFAR-10", source.where)
    labels = checked_labels(values, CLASSES, f"{source.where}: labels")
    return _labelled(data.reshape(-1, *SHAPE), labels, source.where)


def _read_binary(source: SourceFile) -> Labelled:
    """Read rows of a label and 3,072 pixels."""
    rows = byte_rows(source, PIXELS + 1, MOST)
    labels = checked_labels(rows[:, 0], CLASSES, source.where)
    return _labelled(rows[:, 1:].reshape(-1, *SHAPE), labels, source.where)


def _labelled(images: Array, labels: Array, where: str) -> Labelled:
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(labels)} labels for {len(images)} images; get the files again")
    if len(labels) == 0:
        raise DataError(f"{where} has no samples; get it again")
    return images, labels
