"""Reads FEMNIST: handwritten characters of 62 classes by writer, from LEAF's JSON or TFF's fed_emnist HDF5 files.

In the store a pixel is a byte and 255 is paper, as in the public files; the task inverts it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core import DataError
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.leaf import is_leaf, leaf_files, users
from fedgbo.data.public import EVERY_CLIENT, ClientRules, choose_clients, pick_format
from fedgbo.data.store import Array, Packed
from fedgbo.data.tff import is_hdf5, tff_clients, tff_half

CLASSES = 62
SIDE = 28
FORMATS = {
    "leaf": "LEAF's JSON, in folders train/ and test/ or with _train_ and _test_ in the names",
    "tff": "TFF's fed_emnist_train.h5 and fed_emnist_test.h5",
}
Writers = dict[str, tuple[Array, Array]]  # images (n, 1, 28, 28) and labels (n,), both uint8


def read_femnist(source: Path, *, format: str | None = None, rules: ClientRules = EVERY_CLIENT) -> Packed:
    """Read the writers that the rules keep, in the order of the train files."""
    files = source_files(source)
    present = ["leaf"] * any(map(is_leaf, files)) + ["tff"] * any(map(is_hdf5, files))
    format = pick_format(source, (file.name for file in files), FORMATS, present, format)
    if format == "tff":
        train, test = (_read_tff(tff_half(files, half, "fed_emnist", source)) for half in ("train", "test"))
    else:
        halves = leaf_files(source)
        train, test = ({user.name: _checked(user.x, user.y, user.where) for user in users(half)} for half in halves)
    sizes = [{name: len(labels) for name, (_, labels) in half.items()} for half in (train, test)]
    kept = choose_clients(sizes[0], sizes[1], rules, source)
    arrays = {"client_names": np.array(kept.train), **_stacked("train", train, kept.train)}
    arrays |= _stacked("test", test, kept.test)
    if rules.by_user:
        del arrays["test_offsets"]  # the test users are not the clients
    meta = {"task": "femnist", "source": str(source), "synthetic": False, "format": format}
    return Packed(arrays, meta, kept.notes)


def _read_tff(source: SourceFile) -> Writers:
    with tff_clients(source, "pixels", "label") as clients:
        return {
            name: _checked(fields["pixels"][()], fields["label"][()], f"user {name!r} in {source.where}")
            for name, fields in clients.items()
        }


def _checked(pixel_values: Any, label_values: Any, where: str) -> tuple[Array, Array]:
    if len(pixel_values) == 0:
        return np.empty((0, 1, SIDE, SIDE), dtype=np.uint8), np.empty(0, dtype=np.uint8)
    pixels = _numbers(pixel_values, f"{where}: the images are not {SIDE * SIDE} numbers each")
    pixels = pixels.reshape(len(pixels), -1).astype(np.float64)
    if pixels.shape[1] != SIDE * SIDE:
        raise DataError(f"{where}: an image has {pixels.shape[1]} numbers; FEMNIST's have {SIDE * SIDE}")
    valid = ((pixels >= 0) & (pixels <= 1)).all(axis=1)  # False for NaN, too
    if not valid.all():
        raise DataError(f"{where}: sample {int(np.argmin(valid))} has a pixel outside 0 ... 1; 1 must be paper, 0 ink")
    labels = _numbers(label_values, f"{where}: the labels are not one whole number each")
    if labels.ndim != 1 or (isinstance(label_values, list) and any(type(label) is bool for label in label_values)):
        raise DataError(f"{where}: the labels are not one whole number each")
    valid = (labels >= 0) & (labels < CLASSES) & (labels == np.floor(labels))
    if not valid.all():
        row = int(np.argmin(valid))
        raise DataError(f"{where}: sample {row} has the label {labels[row]}; FEMNIST's are 0 ... {CLASSES - 1}")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), labels.astype(np.uint8)


def _numbers(values: Any, problem: str) -> Array:
    """Return the values as an array of real numbers; raise DataError with the problem if they are anything else."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{problem} ({error})") from error
    if array.dtype.kind not in "iuf":
        raise DataError(problem)
    return array


def _stacked(half: str, writers: Writers, names: Sequence[str]) -> dict[str, Array]:
    """Join the writers' arrays, and free each writer's as soon as it is copied."""
    offsets = np.cumsum([0, *(len(writers[name][1]) for name in names)], dtype=np.int64)
    images = np.empty((offsets[-1], 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.empty(offsets[-1], dtype=np.uint8)
    for k, name in enumerate(names):
        rows = slice(offsets[k], offsets[k + 1])
        images[rows], labels[rows] = writers.pop(name)
    return {f"{half}_images": images, f"{half}_labels": labels, f"{half}_offsets": offsets}
