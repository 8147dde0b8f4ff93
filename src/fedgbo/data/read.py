"""A client's data as users have them: arrays, dicts of arrays, data frames, torch's and Hugging Face's data sets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from fedgbo.core import DataError
from fedgbo.data.samples import TensorSamples
from fedgbo.data.tree import map_tensors

Target = str | Sequence[str] | None  # the column or columns that are targets
Collate = Callable[[list[Any]], Any]
WIDER = {"u2": np.int32, "u4": np.int64, "u8": np.int64}  # unsigned types that torch computes little with


@dataclass(frozen=True, eq=False)
class Items:
    """Samples that are read one by one, by number."""

    source: Any  # has len() and [number]

    def __len__(self) -> int:
        return len(self.source)


class Zipped:
    """A pair of sequences as a sequence of pairs."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self._inputs[number], None if self._targets is None else self._targets[number]


def read(
    entry: Any,
    where: str,
    target: Target = None,
    collate: Collate | None = None,
    columns: Sequence[Any] | None = None,
) -> TensorSamples | Items:
    """Return a client's samples: in memory, or as items where they are read when they are needed.

    `columns` are those of the first data frame: other frames must have the same, in any order.
    """
    if isinstance(entry, TensorDataset) and collate is None:
        entry = entry.tensors if len(entry.tensors) != 1 else (entry.tensors[0], None)
    if isinstance(entry, IterableDataset | DataLoader | Iterator | str | bytes):
        raise DataError(
            f"{where}: {type(entry).__name__} cannot be read by sample number; give a torch Dataset with __len__ and "
            "__getitem__, a list, or arrays"
        )
    if hasattr(entry, "with_format") and hasattr(entry, "column_names"):  # of Hugging Face
        plain = getattr(entry, "format", {}).get("type") is None
        return _items(entry.with_format("torch") if plain else entry, where)
    if isinstance(entry, TorchDataset):
        return _items(entry, where)
    if is_frame(entry):
        return _in_memory(*_frame(entry, where, target, columns), where)
    if isinstance(entry, Mapping):
        return _in_memory(*split(entry, where, target), where)
    if isinstance(entry, tuple) and len(entry) == 2 and collate is not None:
        return _items(_zipped(*entry, where), where)
    if collate is not None and hasattr(entry, "__getitem__") and hasattr(entry, "__len__"):
        return _items(entry, where)
    if not isinstance(entry, Sequence) or len(entry) != 2:
        found = f"{type(entry).__name__} of {len(entry)} parts" if hasattr(entry, "__len__") else type(entry).__name__
        raise DataError(
            f"{where}: expected an (inputs, targets) pair, a dict of arrays, a DataFrame or a data set, not {found}; "
            "several inputs are ((x1, x2), y), and a list of samples needs collate="
        )
    return _in_memory(entry[0], entry[1], where)


def is_frame(entry: Any) -> bool:
    """Return whether this is a data frame, of pandas or another library."""
    return hasattr(entry, "columns") and hasattr(entry, "to_numpy")


def split(table: Mapping[str, Any], where: str, target: Target) -> tuple[Any, Any]:
    """Return the inputs and the targets of a table; a single column of inputs is given by itself."""
    names = _targets(target)
    for name in names:
        if name not in table:
            raise DataError(f"{where} has no '{name}' (it has {_listed(table)}); name its targets with target=")
    inputs = {name: table[name] for name in table if name not in names}
    if not inputs:
        raise DataError(f"{where} has only targets ({_listed(table)}), and nothing to predict them from")
    targets = table[names[0]] if len(names) == 1 else {name: table[name] for name in names} or None
    return next(iter(inputs.values())) if len(inputs) == 1 and names else inputs, targets


def whole_labels(targets: Any) -> Any:
    """Return targets with 0 and 1 in the place of truth values."""
    return map_tensors(lambda x: x.long() if x.dtype == torch.bool else x, targets)


def tensor_of(values: Any, where: str) -> Tensor:
    """Read an array of numbers; raise DataError that names what is wrong."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise DataError(f"{where} are a sparse tensor; give to_dense() of it")
        tensor = values.detach().cpu()
    elif isinstance(values, list | tuple) and values and all(isinstance(value, Tensor) for value in values):
        tensor = _stacked(values, where)
    else:
        tensor = _from_array(values, where)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        row = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero()[0]) if tensor.ndim else 0
        raise DataError(f"{where} have a NaN or an infinity (first in sample {row}); clean the data first")
    return tensor


def _in_memory(inputs: Any, targets: Any, where: str) -> TensorSamples:
    """Return samples in memory, after a check that every part has one row for each of them."""
    read_inputs = _tree(inputs, f"{where}: inputs")
    read_targets = None if targets is None else whole_labels(_tree(targets, f"{where}: targets"))
    counts: dict[str, int] = {}

    def count(name: str) -> Callable[[Tensor], Tensor]:
        def one(x: Tensor) -> Tensor:
            if x.ndim == 0:
                raise DataError(f"{where}: inputs and targets need a first dimension that counts the samples")
            counts.setdefault(name, len(x))
            if len(x) != counts[name]:
                raise DataError(
                    f"{where}: {name} have parts of {counts[name]} and of {len(x)} samples; each sample needs all parts"
                )
            return x

        return one

    map_tensors(count("inputs"), read_inputs)
    map_tensors(count("targets"), read_targets)
    samples, labels = counts.get("inputs", 0), counts.get("targets")
    if labels is not None and samples != labels:
        raise DataError(f"{where}: {samples} inputs but {labels} targets; each sample needs one of each")
    if samples == 0:
        raise DataError(f"{where} has no samples; leave it out or give it some")
    return TensorSamples(read_inputs, read_targets)


def _tree(values: Any, where: str) -> Any:
    """Read one array, or a mapping or tuple of arrays; lists and tuples of numbers are one array."""
    if isinstance(values, Mapping):
        return {name: tensor_of(part, f"{where} '{name}'") for name, part in values.items()}
    if isinstance(values, tuple) and values and all(len(getattr(part, "shape", ())) > 0 for part in values):
        return tuple(tensor_of(part, f"{where} [{k}]") for k, part in enumerate(values))
    return tensor_of(values, where)


def _from_array(values: Any, where: str) -> Tensor:
    if hasattr(values, "toarray"):
        raise DataError(f"{where} are a sparse matrix; give toarray() of it")
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{where} are a masked array; fill its gaps first")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where} cannot be read as one array of numbers: {error}. If samples have different lengths, pad them, or "
            "give collate=, a function that makes (inputs, targets) of a list of samples"
        ) from error
    if array.dtype.kind in "USO":
        found = next((value for value in array.reshape(-1)[:1000].tolist() if isinstance(value, str)), None)
        what = "are texts" if found is not None else f"are of type {array.dtype}"
        raise DataError(
            f"{where} cannot be read as one array of numbers: they {what}; encode them as numbers, and classes as "
            "whole numbers from 0 on"
        )
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    try:
        native = array.astype(WIDER.get(kind, array.dtype.newbyteorder("=")), copy=False)
        return torch.from_numpy(np.array(native, order="C"))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} cannot be read as one array of numbers: {error}") from error


def _stacked(values: Sequence[Tensor], where: str) -> Tensor:
    try:
        return torch.stack([value.detach().cpu() for value in values])
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"{where} have different shapes ({error}); pad them, or give collate=, a function that makes "
            "(inputs, targets) of a list of samples"
        ) from error


def _frame(frame: Any, where: str, target: Target, expected: Sequence[Any] | None) -> tuple[Any, Any]:
    """Return a data frame's inputs, as one float32 matrix, and its targets."""
    columns = list(frame.columns if expected is None else expected)
    if odd := sorted(map(str, set(columns) ^ set(frame.columns))):
        raise DataError(f"{where}: only some data frames have the columns {_listed(odd)}; make them all alike")
    names = _targets(target)
    if not names:
        raise DataError(f"{where} is a DataFrame; name its column of targets with target= (it has {_listed(columns)})")
    for name in names:
        if name not in columns:
            raise DataError(
                f"{where} has no column '{name}' (it has {_listed(columns)}); name its targets with target="
            )
    others = [name for name in columns if name not in names]
    if not others or len(set(columns)) < len(columns):
        raise DataError(f"{where} needs columns of inputs, each with its own name, not {_listed(columns)}")
    parts = [tensor_of(frame[name], f"{where}: values of column '{name}'") for name in others]
    targets = [tensor_of(frame[name], f"{where}: targets in column '{name}'") for name in names]
    return torch.stack([part.float() for part in parts], dim=1), torch.stack(targets, 1) if names[1:] else targets[0]


def _items(source: Any, where: str) -> Items:
    try:
        count = len(source)
    except (TypeError, NotImplementedError) as error:
        raise DataError(f"{where}: {type(source).__name__} has no length; a data set needs __len__") from error
    if count == 0:
        raise DataError(f"{where} has no samples; leave it out or give it some")
    return Items(source)


def _zipped(inputs: Any, targets: Any, where: str) -> Zipped:
    if targets is not None and len(inputs) != len(targets):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(targets)} targets; each sample needs one of each")
    return Zipped(inputs, targets)


def _targets(target: Target) -> list[str]:
    """Return the names of the columns that are targets."""
    return [] if target is None else [target] if isinstance(target, str) else list(target)


def _listed(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
