"""Reads CIFAR-100 (Krizhevsky, 2009) and splits it into clients. The names of the files tell the format.

cifar-100-python   train, test, and optionally meta: pickles, plain or .xz, in parts, in an archive
cifar-100-binary   train.bin, test.bin, and optionally fine_label_names.txt
fed_cifar100       fed_cifar100_train.h5, fed_cifar100_test.h5: TFF's, already split into the paper's 500 clients
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedgbo.core import DataError, check_seed, whole
from fedgbo.data.archives import SourceFile, only_file, source_files
from fedgbo.data.partition import pachinko
from fedgbo.data.public import pick_format
from fedgbo.data.store import Array, Packed
from fedgbo.data.tff import tff_clients
from fedgbo.data.unpickle import load_plain, text

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
FINE, COARSE = 100, 20
MOST = 60_000  # images of CIFAR-100; a file that declares more would only fill the memory

Labelled = tuple[Array, Array, Array]  # images (N, 3, 32, 32), fine and coarse labels (N,), all uint8


class Format(NamedTuple):
    """A public form of CIFAR-100: the names of its files, and the function that reads one of them."""

    name: str
    train: str
    test: str
    reader: Callable[[SourceFile], Labelled] | None = None  # None: the files are split into clients
    classes: str | None = None  # the file with the names of the classes


def read_cifar100(
    source: Path, *, format: str | None = None, clients: int = 500, samples: int = 100, seed: int = 0
) -> Packed:
    """Read CIFAR-100 in any of the formats from `source`, a folder or an archive.

    Files without clients are split by Pachinko allocation as in the paper: `clients` clients with `samples` samples
    each, drawn by `seed`.
    """
    whole("clients", clients)
    whole("samples", samples)
    check_seed(seed)
    files = by_name(source)
    form = _recognise(source, files, format)
    train, test = (only_file(source, files[name], f"files named {name}") for name in (form.train, form.test))
    meta = {"task": "cifar100", "source": str(source), "synthetic": False, "format": form.name}
    arrays: dict[str, Array] = {}
    if form.reader is None:
        arrays["train_images"], arrays["train_labels"], arrays["train_offsets"], names = _read_tff(train)
        arrays["test_images"], arrays["test_labels"], _, _ = _read_tff(test)
        return Packed({**arrays, "client_names": names}, meta | {"split": "as in the files"})
    if form.classes in files:
        meta |= {"classes": _read_names(files[form.classes][0])}
    arrays["test_images"], arrays["test_labels"], _ = form.reader(test)
    images, fine, coarse = form.reader(train)
    if clients * samples > len(fine):
        few = f"{train.where} has {len(fine)} images, too few for {clients} clients with {samples} each"
        raise DataError(f"{few}: it is cut short (CIFAR-100 has 50000), or ask for fewer clients or samples")
    try:
        order = np.concatenate(pachinko(coarse, fine, clients, samples, seed=seed))
    except DataError as error:
        raise DataError(f"{train.where}: {error}") from error
    arrays["train_images"], arrays["train_labels"] = images[order], fine[order]
    arrays["train_offsets"] = np.arange(clients + 1, dtype=np.int64) * samples
    return Packed(arrays, meta | {"split": f"Pachinko allocation, {clients} clients x {samples} samples, seed {seed}"})


def by_name(source: Path) -> dict[str, list[SourceFile]]:
    """Return the files at `source` by their names without folders."""
    files: dict[str, list[SourceFile]] = {}
    for file in source_files(source):
        files.setdefault(PurePosixPath(file.name).name, []).append(file)
    return files


def _recognise(source: Path, files: Mapping[str, Any], given: str | None) -> Format:
    forms = {form.name: form for form in FORMATS}
    present = [form.name for form in FORMATS if form.train in files and form.test in files]
    for form in FORMATS if not present else ():
        for there, missing in ((form.train, form.test), (form.test, form.train)):
            if there in files:
                raise DataError(f"{source} has {there} but not {missing}; {form.name} needs both")
    described = {form.name: f"{form.train} and {form.test}" for form in FORMATS}
    return forms[pick_format(source, files, described, present, given)]


def _read_pickle(source: SourceFile) -> Labelled:
    with source.open() as stream:
        content = load_plain(stream, source.where)
    data, fine, coarse = pickled_columns(content, ("fine_labels", "coarse_labels"), "CIFAR-100", source.where)
    return _labelled(data, fine, coarse, source.where)


def _read_binary(source: SourceFile) -> Labelled:
    """Read `train.bin` or `test.bin`: rows of a coarse byte, a fine byte and 3,072 pixels."""
    rows = byte_rows(source, PIXELS + 2, MOST)
    return _labelled(rows[:, 2:], rows[:, 1], rows[:, 0], source.where)


def pickled_columns(content: Mapping[str, Any], labels: Sequence[str], data_set: str, where: str) -> list[Any]:
    """Return the pixels (N, 3072) and the unchecked labels of a pickle of CIFAR-10 or CIFAR-100."""
    for key in ("data", *labels):
        if key not in content:
            raise DataError(f"{where} has no '{key}'; it is not a part of {data_set}, or get it again")
    data = content["data"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise DataError(f"{where}: data must be bytes of shape (samples, {PIXELS}); get it again")
    return [data, *(content[key] for key in labels)]


def byte_rows(source: SourceFile, width: int, most: int) -> Array:
    """Return the rows of a binary file that has at most so many, as bytes (N, width)."""
    with source.open(most * width) as stream:
        content = stream.read()
    if len(content) % width:
        size = f"{len(content)} bytes, no whole number of {width}-byte rows"
        raise DataError(f"{source.where} has {size} (it breaks off in row {len(content) // width}); get it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, width)


FORMATS = (
    Format("fed_cifar100", "fed_cifar100_train.h5", "fed_cifar100_test.h5"),
    Format("cifar-100-python", "train", "test", _read_pickle, "meta"),
    Format("cifar-100-binary", "train.bin", "test.bin", _read_binary, "fine_label_names.txt"),
)


def _read_tff(source: SourceFile) -> tuple[Array, Array, Array, Array]:
    """Return images and labels, client by client, the clients' offsets and their names."""
    with tff_clients(source, "image", "label") as clients:
        for name, fields in clients.items():
            if fields["image"].shape[1:] != (32, 32, 3) or fields["image"].dtype != np.uint8:
                kind = f"{fields['image'].dtype} of shape {fields['image'].shape}"
                raise DataError(f"{source.where}: client '{name}' has images that are {kind}, not uint8 (n, 32, 32, 3)")
        offsets = np.cumsum([0, *(len(fields["image"]) for fields in clients.values())], dtype=np.int64)
        if (np.diff(offsets) == 0).any():
            empty = list(clients)[int(np.argmin(np.diff(offsets)))]
            raise DataError(f"{source.where}: client '{empty}' has no samples; every client needs some")
        if offsets[-1] > MOST:
            raise DataError(f"{source.where} declares {offsets[-1]} images, CIFAR-100 has {MOST}; get it again")
        images = np.empty((offsets[-1], *SHAPE), dtype=np.uint8)
        labels = np.empty(offsets[-1], dtype=np.uint8)
        for c, (name, fields) in enumerate(clients.items()):
            rows = slice(offsets[c], offsets[c + 1])
            images[rows] = fields["image"][()].transpose(0, 3, 1, 2)
            labels[rows] = checked_labels(fields["label"][()], FINE, f"{source.where}: client '{name}': label")
        return images, labels, offsets, np.array(list(clients))


def _read_names(source: SourceFile) -> list[str]:
    with source.open() as stream:
        if source.name.endswith(".txt"):
            found: Any = stream.read(1 << 16).split()
        else:
            found = load_plain(stream, source.where).get("fine_label_names")
    if not isinstance(found, list) or len(found) != FINE or not all(isinstance(name, bytes | str) for name in found):
        raise DataError(f"{source.where} does not have the names of {FINE} classes; get it again, or leave it out")
    return [text(name) for name in found]


def _labelled(pixels: Array, fine_values: Any, coarse_values: Any, where: str) -> Labelled:
    fine = checked_labels(fine_values, FINE, f"{where}: fine_labels")
    coarse = checked_labels(coarse_values, COARSE, f"{where}: coarse_labels")
    if not len(pixels) == len(fine) == len(coarse):
        counts = f"{len(pixels)} images, {len(fine)} fine and {len(coarse)} coarse labels"
        raise DataError(f"{where} has {counts}; get it again")
    if len(pixels) == 0:
        raise DataError(f"{where} has no samples; get it again")
    return pixels.reshape(-1, *SHAPE), fine, coarse


def checked_labels(values: Any, classes: int, where: str) -> Array:
    """Return the labels as bytes; raise DataError unless they are whole numbers below `classes`."""
    numbers = isinstance(values, np.ndarray) and values.ndim == 1 and np.issubdtype(values.dtype, np.integer)
    if not numbers and not (isinstance(values, list) and all(type(value) is int for value in values)):
        raise DataError(f"{where} must be one column of whole numbers; get the file again")
    column = np.asarray(values)
    wrong = np.flatnonzero((column < 0) | (column >= classes))
    if wrong.size:
        raise DataError(f"{where}: sample {wrong[0]} has label {column[wrong[0]]}, outside 0 ... {classes - 1}")
    return column.astype(np.uint8)
