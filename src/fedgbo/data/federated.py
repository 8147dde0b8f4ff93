"""Federated data: the training samples of all clients, one client after another, and a common test set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import ConfigError, DataError, Rows, permutation, whole
from fedgbo.data.samples import Samples, TensorSamples
from fedgbo.data.tree import digest_of

Pair = tuple[Any, Any]  # inputs and targets, each anything that numpy or torch can read


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Client c owns the training samples offsets[c] to offsets[c + 1]; the test set belongs to all."""

    train: Samples
    offsets: Rows  # (clients + 1,)
    test: Samples
    content_digest: str | None = None  # of the packed store that the data were opened from

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def digest(self) -> str:
        """Return a digest of all samples and of who owns which: a run is resumed with the same data only."""
        return digest_of((self.train.digest(), self.offsets, self.test.digest()))

    @classmethod
    def from_clients(cls, *, train: Sequence[Pair], test: Pair) -> "FederatedData":
        """Take one (inputs, targets) pair for each client, and one for testing: arrays, lists or tensors."""
        if len(train) == 0:
            raise DataError("train has no clients; give one (inputs, targets) pair for each client")
        pairs = [_pair(pair, f"client {c}") for c, pair in enumerate(train)]
        tested = _pair(test, "test")
        _check_alike(pairs, tested)
        samples = TensorSamples(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
        offsets = np.cumsum([0, *(len(targets) for _, targets in pairs)], dtype=np.int64)
        return cls(samples, offsets, TensorSamples(*(part.clone() for part in tested)))

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

    @classmethod
    def from_packed(cls, arrays: Mapping[str, Any], where: str, samples: Callable[[str], Samples]) -> "FederatedData":
        """Open a store's arrays; samples("train") and samples("test") build each half. `where` is for messages."""
        try:
            offsets, train, test = arrays["train_offsets"], samples("train"), samples("test")
        except KeyError as error:
            raise DataError(f"{where} lacks the array {error.args[0]}; pack the data again") from error
        if len(test) == 0:
            raise DataError(f"{where}: the test set is empty; pack the data again")
        whole_numbers = offsets.ndim == 1 and len(offsets) > 1 and np.issubdtype(offsets.dtype, np.integer)
        if not whole_numbers or offsets[0] != 0 or offsets[-1] != len(train) or (np.diff(offsets) < 1).any():
            rule = f"rise from 0 to the {len(train)} training samples, with some for every client"
            raise DataError(f"{where}: train_offsets must {rule}; pack the data again")
        return cls(train, np.asarray(offsets, dtype=np.int64), test)


def hold_out(data: FederatedData, share: float = 0.2, seed: int = 0) -> FederatedData:
    """Replace the test set by `share` of each client's training samples, to choose settings by.

    The samples are drawn at random. If samples overlap their neighbours, as windows over a text do, the last ones are
    held out instead, and those that overlap both parts are dropped. Every client keeps at least one sample to train
    on, so a client with one sample (or too short a text) holds nothing out. The old test set is never read.
    """
    if not 0 < share < 1:
        raise ConfigError(f"the share held out must be above 0 and below 1, not {share!r}; 0.2 is a good first try")
    sizes, gap = np.diff(data.offsets), data.train.overlap
    held = np.floor(share * sizes + 0.5).astype(np.int64)
    held = np.where(sizes - held - gap >= 1, held, 0)
    kept = np.where(held > 0, sizes - held - gap, sizes)
    if not held.any():
        few = f"no client has enough samples to hold out {share:g} of them (the largest has {sizes.max()})"
        raise DataError(f"{few}; hold out a larger share, or tune on the test set")
    order = np.arange(sizes.sum())
    if not gap:  # shuffle each client's rows
        shuffled = permutation(len(order), seed, "held out")
        owner = np.repeat(np.arange(len(sizes)), sizes)
        order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    position = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of a row in its client's order
    first = data.offsets[0]
    train = first + np.sort(order[position < np.repeat(kept, sizes)])
    test = first + np.sort(order[position >= np.repeat(sizes - held, sizes)])
    return FederatedData(data.train.take(train), np.concatenate([[0], np.cumsum(kept)]), data.train.take(test))


@dataclass(frozen=True)
class MemoryComparison:
    """Bytes of all training and test samples: packed, and the naive way, with each sample as tensors of its own."""

    naive: int
    packed: int

    @property
    def ratio(self) -> float:
        return self.naive / self.packed


def compare_memory(data: FederatedData, clients: int = 3) -> MemoryComparison:
    """Build the first `clients` clients the naive way and scale to all: exact if all samples have the same shape."""
    whole("clients", clients)
    built = [data.train.batch(np.arange(*data.offsets[c : c + 2])) for c in range(min(clients, data.clients))]
    count = sum(len(targets) for _, targets in built)
    used = sum(tensor.element_size() * tensor.nelement() for pair in built for tensor in pair)
    samples = len(data.train) + len(data.test)
    held = [value for half in (data.train, data.test) for value in vars(half).values()]
    arrays = {id(value): int(value.nbytes) for value in held if isinstance(value, np.ndarray | Tensor)}  # each once
    packed = sum(arrays.values()) + int(data.offsets.nbytes)
    return MemoryComparison(naive=used * samples // count, packed=packed)


def _pair(pair: Pair, where: str) -> tuple[Tensor, Tensor]:
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
        row = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero()[0]) if tensor.ndim else 0
        raise DataError(f"{where} have a NaN or an infinity (first in sample {row}); clean the data first")
    return tensor


def _check_alike(pairs: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor]) -> None:

    def describe(tensor: Tensor) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape[1:])} a sample"

    for what, k in (("inputs", 0), ("targets", 1)):
        expected = describe(pairs[0][k])
        for where, pair in [*((f"client {c}", pair) for c, pair in enumerate(pairs)), ("test", test)]:
            if (found := describe(pair[k])) != expected:
                raise DataError(f"{where}: {what} are {found}, but client 0 has {expected}; make them all alike")
