"""Data that is spread over clients: all training samples in one row, client by client, and a common test set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.core.random import Rows
from fedgbo.data.samples import Samples, TensorSamples

Pair = tuple[Any, Any]  # inputs and targets, each anything that numpy or torch can read


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Client c owns the training samples offsets[c] to offsets[c + 1]; the test set belongs to all."""

    train: Samples
    offsets: Rows  # (clients + 1,)
    test: Samples

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.offsets) - 1

    def size(self, client: int) -> int:
        """How many training samples the client has."""
        return int(self.offsets[client + 1] - self.offsets[client])

    @classmethod
    def from_clients(cls, *, train: Sequence[Pair], test: Pair) -> "FederatedData":
        """Take one (inputs, targets) pair for each client, and one for testing: arrays, lists or tensors."""
        if len(train) == 0:
            raise DataError("train has no clients; give one (inputs, targets) pair for each client")
        pairs = [_pair(pair, f"client {c}") for c, pair in enumerate(train)]
        tested = _pair(test, "test")
        _check_alike(pairs, tested)
        sizes = [len(targets) for _, targets in pairs]
        return cls(
            train=TensorSamples(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])),
            offsets=np.cumsum([0, *sizes], dtype=np.int64),
            test=TensorSamples(*tested),
        )

    @classmethod
    def from_arrays(cls, x: Any, y: Any, *, parts: Sequence[Any], test: Pair) -> "FederatedData":
        """Give client c the rows parts[c] of x and y; the partitioners in `fedgbo.partition` make such parts."""
        inputs, targets = _pair((x, y), "x, y")
        rows = [np.asarray(part) for part in parts]
        for c, part in enumerate(rows):
            if part.ndim != 1 or (part.size and not np.issubdtype(part.dtype, np.integer)):
                raise DataError(f"parts[{c}] must be a list of row numbers, not {part.dtype} of shape {part.shape}")
            if part.size and not (part.min() >= 0 and part.max() < len(targets)):
                raise DataError(f"parts[{c}] has row numbers outside 0 ... {len(targets) - 1}")
        return cls.from_clients(train=[(inputs[part], targets[part]) for part in rows], test=test)


def _pair(pair: Pair, where: str) -> tuple[Tensor, Tensor]:
    """Read inputs and targets as tensors and check them."""
    if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise DataError(f"{where}: expected an (inputs, targets) pair, not {type(pair).__name__}")
    inputs, targets = _tensor(pair[0], f"{where}: inputs"), _tensor(pair[1], f"{where}: targets")
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the samples")
    if len(inputs) != len(targets):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(targets)} targets; each sample needs one of each")
    if len(targets) == 0:
        raise DataError(f"{where} has no samples; leave it out or give it some")
    return inputs, targets


def _tensor(values: Any, where: str) -> Tensor:
    try:
        tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} cannot be read as one array of numbers: {error}") from error
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        row = int((~torch.isfinite(tensor)).flatten(1).any(1).nonzero()[0]) if tensor.ndim > 1 else None
        place = f" (first in sample {row})" if row is not None else ""
        raise DataError(f"{where} have a NaN or an infinity{place}; clean the data first")
    return tensor


def _check_alike(pairs: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor]) -> None:
    """Raise unless all clients and the test set have samples of the same shape and type."""
    for what, k in (("inputs", 0), ("targets", 1)):
        first = pairs[0][k]
        for where, pair in [*((f"client {c}", pair) for c, pair in enumerate(pairs)), ("test", test)]:
            if pair[k].shape[1:] != first.shape[1:] or pair[k].dtype != first.dtype:
                raise DataError(
                    f"{where}: {what} are {_kind(pair[k])}, but client 0 has {_kind(first)}; make them all alike"
                )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape[1:])} a sample"
