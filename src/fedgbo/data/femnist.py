"""FEMNIST: handwritten characters of 62 classes by writer, from LEAF's JSON or TFF's fed_emnist HDF5 files.

On disk a pixel is a byte and 255 is paper, as in the public files; the task turns it round.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.extras import h5py
from fedgbo.data.leaf import check_same_users, leaf_files, users
from fedgbo.data.packed import Packed
from fedgbo.data.store import Array

CLASSES = 62
SIDE = 28
Writers = dict[str, tuple[Array, Array]]  # images (n, 1, 28, 28) and labels (n,), both uint8


def read_femnist(source: Path) -> Packed:
    """Read all writers, in the order of the train files."""
    found = [file for file in source_files(source) if file.name.endswith((".h5", ".hdf5"))]
    if found:
        train, test = (_from_tff(_half(found, role, source)) for role in ("train", "test"))
    else:
        files = leaf_files(source, "TFF's fed_emnist_train.h5 and fed_emnist_test.h5")
        train, test = _from_leaf(files.train), _from_leaf(files.test)
    check_same_users(train, test, source)
    names = list(train)
    arrays = {"client_names": np.array(names), **_stacked("train", train, names), **_stacked("test", test, names)}
    return Packed(arrays, {"task": "femnist", "source": str(source), "synthetic": False})


def _half(files: list[SourceFile], role: str, source: Path) -> SourceFile:
    fitting = [file for file in files if role in file.name.rsplit("/", 1)[-1]]
    if len(fitting) != 1:
        raise DataError(
            f"{source} has {len(fitting)} HDF5 files with {role!r} in their names, where one is needed; "
            "TFF's are fed_emnist_train.h5 and fed_emnist_test.h5"
        )
    return fitting[0]


def _from_leaf(files: Iterable[SourceFile]) -> Writers:
    return {user.name: (_pixels(user.x, user.where), _labels(user.y, user.where)) for user in users(files)}


def _from_tff(file: SourceFile) -> Writers:
    library = h5py()
    with file.open_seekable() as stream, library.File(stream, "r") as content:
        examples = content.get("examples")
        if not isinstance(examples, library.Group) or len(examples) == 0:
            raise DataError(f"{file.where} has no group 'examples' with clients in it; this is not TFF's fed_emnist")
        return dict(_clients(examples, file.where))


def _clients(examples: Any, where: str) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for name in examples:
        place = f"user {name!r} in {where}"
        try:
            pixels, labels = examples[name]["pixels"][()], examples[name]["label"][()]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{place} lacks 'pixels' or 'label'; this is not TFF's fed_emnist") from error
        if len(pixels) != len(labels):
            raise DataError(f"{place} has {len(pixels)} images but {len(labels)} labels; each sample needs one of each")
        if len(labels) == 0:
            raise DataError(f"{place} has no samples; remove the user, or get the file again")
        yield name, (_pixels(pixels, place), _labels(labels, place))


def _pixels(values: Any, where: str) -> Array:
    try:
        pixels = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: the images are not {SIDE * SIDE} numbers each ({error})") from error
    if pixels.shape[1] != SIDE * SIDE:
        raise DataError(f"{where}: an image has {pixels.shape[1]} numbers; FEMNIST's have {SIDE * SIDE}")
    valid = ((pixels >= 0) & (pixels <= 1)).all(axis=1)  # also not NaN
    if not valid.all():
        raise DataError(f"{where}: sample {int(np.argmin(valid))} has a pixel outside 0 ... 1; 1 must be paper, 0 ink")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)


def _labels(values: Any, where: str) -> Array:
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise DataError(f"{where}: the labels are not one whole number each")
    valid = (labels >= 0) & (labels < CLASSES) & (labels == np.floor(labels))
    if not valid.all():
        row = int(np.argmin(valid))
        raise DataError(f"{where}: sample {row} has the label {labels[row]}; FEMNIST's are 0 ... {CLASSES - 1}")
    return labels.astype(np.uint8)


def _stacked(half: str, writers: Writers, names: list[str]) -> dict[str, Array]:
    """Put the writers one after the other, letting go of each as it is copied."""
    offsets = np.cumsum([0, *(len(writers[name][1]) for name in names)], dtype=np.int64)
    images = np.empty((offsets[-1], 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.empty(offsets[-1], dtype=np.uint8)
    for k, name in enumerate(names):
        rows = slice(offsets[k], offsets[k + 1])
        images[rows], labels[rows] = writers.pop(name)
    return {f"{half}_images": images, f"{half}_labels": labels, f"{half}_offsets": offsets}
