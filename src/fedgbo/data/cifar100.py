"""CIFAR-100 from the files that people have to clients: the format is found by the files' names.

cifar-100-python   train, test, and meta if there is one: pickles, plain or .xz, in parts, in an archive
cifar-100-binary   train.bin, test.bin, and fine_label_names.txt if there is one
fed_cifar100       fed_cifar100_train.h5, fed_cifar100_test.h5: TFF's, with the paper's 500 clients already in it
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedgbo.core.checks import whole
from fedgbo.core.errors import DataError
from fedgbo.core.random import check_seed
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.cifar100_files import Labelled, read_binary, read_names, read_pickle
from fedgbo.data.cifar100_hdf5 import read_federated
from fedgbo.data.packed import Packed
from fedgbo.data.partition import pachinko
from fedgbo.data.store import Array


@dataclass(frozen=True)
class Format:
    """A public form of CIFAR-100: the names of its files, and how one of them is read."""

    name: str
    train: str
    test: str
    reader: Callable[[SourceFile], Labelled] | None = None  # None: the clients are in the files
    classes: str | None = None  # where the classes' names are


FORMATS = (
    Format("fed_cifar100", "fed_cifar100_train.h5", "fed_cifar100_test.h5"),
    Format("cifar-100-python", "train", "test", read_pickle, "meta"),
    Format("cifar-100-binary", "train.bin", "test.bin", read_binary, "fine_label_names.txt"),
)


def read_cifar100(source: Path, *, clients: int = 500, samples: int = 100, seed: int = 0) -> Packed:
    """Read CIFAR-100 in whichever format lies at `source`, a folder or an archive.

    Where the files have no clients, they are drawn by Pachinko allocation as in the paper: `clients` clients with
    `samples` samples each, by `seed`. Arrays: train_images (N, 3, 32, 32), train_labels, train_offsets, test_images,
    test_labels, and client_names where there are names.
    """
    whole("clients", clients)
    whole("samples", samples)
    check_seed(seed)
    files = _by_name(source)
    form = _recognised(source, files)
    meta = {"task": "cifar100", "source": str(source), "synthetic": False, "format": form.name}
    if form.reader is None:
        train, test = read_federated(files[form.train]), read_federated(files[form.test])
        arrays = {f"train_{name}": train[name] for name in ("images", "labels", "offsets")}
        arrays |= {"client_names": train["client_names"], "test_images": test["images"], "test_labels": test["labels"]}
        return Packed(arrays, meta | {"split": "as in the files"})
    if form.classes in files:
        meta |= {"classes": read_names(files[form.classes])}
    test_part, train_part = form.reader(files[form.test]), form.reader(files[form.train])
    arrays = _dealt(train_part, files[form.train].where, clients, samples, seed)
    arrays |= {"test_images": test_part.images, "test_labels": test_part.fine}
    return Packed(arrays, meta | {"split": f"Pachinko allocation, {clients} clients x {samples} samples, seed {seed}"})


def _by_name(source: Path) -> dict[str, SourceFile]:
    """Return the files by their last names; where one name comes twice, the first counts."""
    files: dict[str, SourceFile] = {}
    for file in source_files(source):
        files.setdefault(PurePosixPath(file.name).name, file)
    return files


def _recognised(source: Path, files: Mapping[str, Any]) -> Format:
    for form in FORMATS:
        if form.train in files and form.test in files:
            return form
    for form in FORMATS:
        for there, missing in ((form.train, form.test), (form.test, form.train)):
            if there in files:
                raise DataError(
                    f"{source} has {there} but not {missing}; give the folder or archive of {form.name} that has both"
                )
    listed = ", ".join(sorted(files)[:5]) or "no files"
    wanted = "; ".join(f"{form.train} and {form.test} ({form.name})" for form in FORMATS)
    raise DataError(f"{source} holds no CIFAR-100 that is known here: it has {listed}, and needs one of: {wanted}")


def _dealt(train: Labelled, where: str, clients: int, samples: int, seed: int) -> dict[str, Array]:
    """Deal the training images out to clients, and lay them down client by client."""
    if clients * samples > len(train.fine):
        raise DataError(
            f"{where} has {len(train.fine)} images, too few for {clients} clients with {samples} each: it is cut short "
            "(CIFAR-100 has 50000), or ask for fewer clients or samples"
        )
    try:
        order = np.concatenate(pachinko(train.coarse, train.fine, clients, samples, seed=seed))
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return {
        "train_images": train.images[order],
        "train_labels": train.fine[order],
        "train_offsets": np.arange(clients + 1, dtype=np.int64) * samples,
    }
