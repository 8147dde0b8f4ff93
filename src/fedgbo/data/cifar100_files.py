"""The two public forms of CIFAR-100 (Krizhevsky, 2009): Python's pickles and the binary version."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.archives import SourceFile
from fedgbo.data.store import Array
from fedgbo.data.unpickle import load_plain, text

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
FINE, COARSE = 100, 20


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images (N, 3, 32, 32) with their fine and coarse labels (N,), all uint8."""

    images: Array
    fine: Array
    coarse: Array


def read_pickle(source: SourceFile) -> Labelled:
    """Read `train` or `test` of the cifar-100-python folder."""
    with source.open() as stream:
        content = load_plain(stream, source.where)
    for key in ("data", "fine_labels", "coarse_labels"):
        if key not in content:
            raise DataError(f"{source.where} has no '{key}'; it is no part of CIFAR-100, or get it again")
    data = content["data"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise DataError(f"{source.where}: data must be bytes of shape (samples, {PIXELS}); get it again")
    fine = labels(content["fine_labels"], FINE, f"{source.where}: fine_labels")
    coarse = labels(content["coarse_labels"], COARSE, f"{source.where}: coarse_labels")
    return _labelled(data, fine, coarse, source.where)


def read_binary(source: SourceFile) -> Labelled:
    """Read `train.bin` or `test.bin`: rows of a coarse byte, a fine byte and 3,072 pixels."""
    with source.open() as stream:
        content = stream.read()
    width = PIXELS + 2
    if len(content) % width:
        raise DataError(
            f"{source.where} has {len(content)} bytes, no whole number of {width}-byte rows (it breaks off in row "
            f"{len(content) // width}): cut short, or not CIFAR-100's binary version; get it again"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
    fine = labels(rows[:, 1], FINE, f"{source.where}: fine labels")
    coarse = labels(rows[:, 0], COARSE, f"{source.where}: coarse labels")
    return _labelled(rows[:, 2:], fine, coarse, source.where)


def read_names(source: SourceFile) -> list[str]:
    """Read the names of the fine classes out of `meta` or fine_label_names.txt."""
    with source.open() as stream:
        if source.name.endswith(".txt"):
            found: Any = stream.read(1 << 16).split()
        else:
            found = load_plain(stream, source.where).get("fine_label_names")
    if not isinstance(found, list) or len(found) != FINE or not all(isinstance(name, bytes | str) for name in found):
        raise DataError(f"{source.where} does not have the names of {FINE} classes; get it again, or leave it out")
    return [text(name) for name in found]


def labels(values: Any, classes: int, where: str) -> Array:
    """Check a column of labels and make bytes of it."""
    numbers = isinstance(values, np.ndarray) and values.ndim == 1 and np.issubdtype(values.dtype, np.integer)
    if not numbers and not (isinstance(values, list) and all(type(value) is int for value in values)):
        raise DataError(f"{where} must be one column of whole numbers; get the file again")
    column = np.asarray(values)
    wrong = np.flatnonzero((column < 0) | (column >= classes))
    if wrong.size:
        raise DataError(f"{where}: sample {wrong[0]} has label {column[wrong[0]]}, outside 0 ... {classes - 1}")
    return column.astype(np.uint8)


def _labelled(pixels: Array, fine: Array, coarse: Array, where: str) -> Labelled:
    if not len(pixels) == len(fine) == len(coarse):
        raise DataError(
            f"{where} has {len(pixels)} images, {len(fine)} fine and {len(coarse)} coarse labels; get it again"
        )
    if len(pixels) == 0:
        raise DataError(f"{where} has no samples; get it again")
    return Labelled(pixels.reshape(-1, *SHAPE), fine, coarse)
