"""Reads FEMNIST: handwritten characters of 62 classes by writer, from LEAF's JSON or TFF's fed_emnist HDF5 files.

In the store a pixel is a byte and 255 is paper, as in the public files; the task inverts it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core import DataError
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.hdf5 import tff_clients
from fedgbo.data.leaf import check_same_users, leaf_files, users
from fedgbo.data.store import Array, Packed

CLASSES = 62
SIDE = 28
Writers = dict[str, tuple[Array, Array]]  # images (n, 1, 28, 28) and labels (n,), both uint8


def read_femnist(source: Path) -> Packed:
    """Read all writers, in the order of the train files."""
    found = [file for file in source_files(source) if file.name.endswith((".h5", ".hdf5"))]
    if found:
        train, test = (_read_tff(found, half, source) for half in ("train", "test"))
    else:
        halves = leaf_files(source, "TFF's fed_emnist_train.h5 and fed_emnist_test.h5")
        train, test = ({user.name: _checked(user.x, user.y, user.where) for user in users(half)} for half in halves)
    check_same_users(train, test, source)
    names = list(train)
    arrays = {"client_names": np.array(names), **_stacked("train", train, names), **_stacked("test", test, names)}
    return Packed(arrays, {"task": "femnist", "source": str(source), "synthetic": False})


def _read_tff(files: list[SourceFile], half: str, source: Path) -> Writers:
    fitting = [file for file in files if half in file.name.rsplit("/", 1)[-1]]
    if len(fitting) != 1:
        found = f"{source} has {len(fitting)} HDF5 files with {half!r} in their names"
        raise DataError(f"{found}, where one is needed; TFF's are fed_emnist_train.h5 and fed_emnist_test.h5")
    with tff_clients(fitting[0], "pixels", "label") as clients:
        return {
            name: _checked(fields["pixels"][()], fields["label"][()], f"user {name!r} in {fitting[0].where}")
            for name, fields in clients.items()
        }


def _checked(pixel_values: Any, label_values: Any, where: str) -> tuple[Array, Array]:
    try:
        pixels = np.asarray(pixel_values, dtype=np.float64).reshape(len(pixel_values), -1)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: the images are not {SIDE * SIDE} numbers each ({error})") from error
    if pixels.shape[1] != SIDE * SIDE:
        raise DataError(f"{where}: an image has {pixels.shape[1]} numbers; FEMNIST's have {SIDE * SIDE}")
    valid = ((pixels >= 0) & (pixels <= 1)).all(axis=1)  # False for NaN, too
    if not valid.all():
        raise DataError(f"{where}: sample {int(np.argmin(valid))} has a pixel outside 0 ... 1; 1 must be paper, 0 ink")
    labels = np.asarray(label_values)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise DataError(f"{where}: the labels are not one whole number each")
    valid = (labels >= 0) & (labels < CLASSES) & (labels == np.floor(labels))
    if not valid.all():
        row = int(np.argmin(valid))
        raise DataError(f"{where}: sample {row} has the label {labels[row]}; FEMNIST's are 0 ... {CLASSES - 1}")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), labels.astype(np.uint8)


def _stacked(half: str, writers: Writers, names: list[str]) -> dict[str, Array]:
    """Join the writers' arrays, and free each writer's as soon as it is copied."""
    offsets = np.cumsum([0, *(len(writers[name][1]) for name in names)], dtype=np.int64)
    images = np.empty((offsets[-1], 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.empty(offsets[-1], dtype=np.uint8)
    for k, name in enumerate(names):
        rows = slice(offsets[k], offsets[k + 1])
        images[rows], labels[rows] = writers.pop(name)
    return {f"{half}_images": images, f"{half}_labels": labels, f"{half}_offsets": offsets}
