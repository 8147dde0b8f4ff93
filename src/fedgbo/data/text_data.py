"""From a store's arrays to federated text: windows of characters, or sparse bags of tokens."""

from collections.abc import Mapping

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.federated import FederatedData
from fedgbo.data.samples import Samples
from fedgbo.data.sparse import SparseSamples
from fedgbo.data.store import Array
from fedgbo.data.windows import WindowSamples


def window_data(arrays: Mapping[str, Array], where: str) -> FederatedData:
    """Read the arrays that `read_shakespeare` makes; `where` names them in errors."""
    _check(arrays, ["text", "train_offsets", *_both("starts", "counts")], where)
    text = arrays["text"]
    train, test = (WindowSamples(text, arrays[f"{h}_starts"], arrays[f"{h}_counts"]) for h in ("train", "test"))
    return _federated(train, test, arrays, where)


def sparse_data(arrays: Mapping[str, Array], where: str) -> FederatedData:
    """Read the arrays that `read_sent140` makes; `where` names them in errors."""
    columns = ("indptr", "indices", "counts", "labels")
    _check(arrays, ["train_offsets", *_both(*columns)], where)
    train, test = (SparseSamples(*(arrays[f"{h}_{column}"] for column in columns)) for h in ("train", "test"))
    return _federated(train, test, arrays, where)


def _both(*names: str) -> list[str]:
    return [f"{half}_{name}" for half in ("train", "test") for name in names]


def _check(arrays: Mapping[str, Array], needed: list[str], where: str) -> None:
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(f"{where} lacks the arrays {', '.join(missing)}; pack the data again")


def _federated(train: Samples, test: Samples, arrays: Mapping[str, Array], where: str) -> FederatedData:
    offsets = np.asarray(arrays["train_offsets"])
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(train) or (np.diff(offsets) < 1).any():
        raise DataError(
            f"{where}: train_offsets must rise from 0 to the {len(train)} training samples, with some for every "
            "client; pack the data again"
        )
    return FederatedData(train, offsets, test)
