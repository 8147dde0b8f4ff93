"""Numbered samples that batches are taken from: tensors, windows over a text, and sparse token counts."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import DataError, Rows
from fedgbo.data.store import Array
from fedgbo.data.tree import digest_of, kind_of, map_tensors, samples_in

Transform = Callable[[Any, np.random.Generator], Any]  # of a training batch's inputs
IGNORED = -100  # a target that cross-entropy, and so accuracy, leaves out
WINDOW = 80  # characters of a window
DIGESTED = 64  # samples that stand for all of them in a digest
LARGEST_COUNT = 255  # of one byte; a larger count is stored as several pairs of the same feature


class Samples(ABC):
    """Numbered (input, target) samples. Each subclass decides how to store them.

    A batch is a pair of inputs and targets, each a tensor or a tuple, list or mapping of tensors; targets may be None.
    """

    overlap = 0  # the distance up to which two rows may share content; not 0 for windows over one text

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        """Return inputs and targets of `rows`; `rng` is given if samples shall be augmented for training."""

    @abstractmethod
    def label_range(self) -> tuple[int, int] | None:
        """Return bounds of the labels (of all samples, for a subset), or None if targets are not integers."""

    def labels_of(self, rows: Rows) -> Array:
        """Return only the targets of `rows`; subclasses override this where it is possible without the inputs."""
        labels: Array = self.batch(rows)[1].numpy()
        return labels

    def digest(self) -> str:
        """Return a digest of the contents: the same samples have the same digest.

        By default it is of some samples, as far as reading them twice gives the same; subclasses digest all of them.
        """
        rows = np.unique(np.linspace(0, len(self) - 1, min(DIGESTED, len(self)), dtype=np.int64))
        one, other = digest_of(self.batch(rows)), digest_of(self.batch(rows))
        return digest_of((len(self), one if one == other else ""))

    def take(self, rows: Rows) -> "Samples":
        """Return a subset; `rows` must ascend. The default keeps row numbers and copies nothing."""
        return Subset(self, rows)


@dataclass(eq=False)
class TensorSamples(Samples):
    """Inputs and targets in memory: tensors, or tuples and mappings of tensors; targets may be None."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return len(self.targets) if isinstance(self.targets, Tensor) else samples_in(self.inputs, self.targets)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        index = torch.from_numpy(rows)
        if isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor):  # without the cost of a tree
            return self.inputs.index_select(0, index), self.targets.index_select(0, index)
        inputs, targets = map_tensors(lambda x: x[index], (self.inputs, self.targets))
        return inputs, targets

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        """Return one sample, as a data set does."""
        inputs, targets = map_tensors(lambda x: x[row], (self.inputs, self.targets))
        return inputs, targets

    def digest(self) -> str:
        return digest_of((self.inputs, self.targets))

    def label_range(self) -> tuple[int, int] | None:
        return range_of(self.targets)


def range_of(targets: Any) -> tuple[int, int] | None:
    """Return the smallest and the largest label, without those left out; None: targets are not whole numbers.

    >>> range_of(torch.tensor([2, IGNORED, 0])), range_of(torch.tensor([0.5]))
    ((0, 2), None)
    """
    if not isinstance(targets, Tensor):
        return None
    kind = targets.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return None
    counted = targets[targets != IGNORED] if kind != torch.uint8 else targets
    return (int(counted.min()), int(counted.max())) if counted.numel() else (IGNORED, IGNORED)


@dataclass(frozen=True, eq=False)
class AugmentedSamples(Samples):
    """Samples whose inputs are changed by transform(inputs, rng) in training batches, which come with a generator."""

    samples: Samples
    transform: Transform

    @property
    def overlap(self) -> int:  # type: ignore[override]
        return self.samples.overlap

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        inputs, targets = self.samples.batch(rows, rng)
        if rng is None:
            return inputs, targets
        try:
            changed = self.transform(inputs, rng)
        except Exception as error:  # whatever a user's function raises
            raise DataError(
                f"transform(inputs, rng) fails on {kind_of(inputs)}: {type(error).__name__}: {error}"
            ) from error
        if samples_in(changed) != samples_in(inputs):
            raise DataError(
                f"transform(inputs, rng) must return one row for each sample: it got {kind_of(inputs)} and returned "
                f"{kind_of(changed)}"
            )
        return changed, targets

    def labels_of(self, rows: Rows) -> Array:
        return self.samples.labels_of(rows)

    def digest(self) -> str:
        return self.samples.digest()

    def label_range(self) -> tuple[int, int] | None:
        return self.samples.label_range()

    def take(self, rows: Rows) -> Samples:
        return AugmentedSamples(self.samples.take(rows), self.transform)


class Subset(Samples):
    """Some rows of other samples, in ascending order."""

    def __init__(self, samples: Samples, rows: Rows) -> None:
        self.samples = samples
        self.rows = np.sort(rows)
        self.overlap = samples.overlap  # two rows are at least as far apart there as here

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        return self.samples.batch(self.rows[rows], rng)

    def labels_of(self, rows: Rows) -> Array:
        return self.samples.labels_of(self.rows[rows])

    def digest(self) -> str:
        return digest_of((self.samples.digest(), self.rows))

    def label_range(self) -> tuple[int, int] | None:
        return self.samples.label_range()


class LabelledSamples(Samples):
    """Base class of samples whose labels are one array of integers (N,)."""

    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def labels_of(self, rows: Rows) -> Array:
        return self.labels[rows]

    def label_range(self) -> tuple[int, int]:
        return int(self.labels.min()), int(self.labels.max())


@dataclass(frozen=True, eq=False)
class WindowSamples(Samples):
    """Runs of windows of 80 characters, one character apart: run r has counts[r] windows, the first at starts[r].

    The sample at position p is text[p : p + 80] with the target text[p + 80]. Windows are built only for a batch.
    """

    overlap = WINDOW
    text: Array  # (characters,) uint8
    starts: Array  # (runs,) int64
    counts: Array  # (runs,) int64
    ends: Array = field(init=False)  # (runs,) int64, the row after each run's last

    def __post_init__(self) -> None:
        beyond = np.max(self.starts + self.counts, initial=0) + WINDOW > len(self.text)
        if len(self.starts) == 0 or np.min(self.starts) < 0 or np.min(self.counts) < 1 or beyond:
            raise DataError("the windows do not match the text; pack the data again")
        object.__setattr__(self, "ends", np.cumsum(self.counts))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        positions = self._positions(rows)[:, None] + np.arange(WINDOW + 1)  # (B, 81)
        windows = torch.from_numpy(self.text[positions].astype(np.int64))
        return windows[:, :WINDOW], windows[:, WINDOW]

    def labels_of(self, rows: Rows) -> Array:
        return np.asarray(self.text[self._positions(rows) + WINDOW])

    def take(self, rows: Rows) -> "WindowSamples":
        """Return the rows as runs over the same text: a few numbers for each run of adjacent rows, no copy."""
        run = np.searchsorted(self.ends, rows, side="right")
        firsts = np.flatnonzero(np.concatenate([[True], (np.diff(rows) != 1) | (np.diff(run) != 0)]))
        return WindowSamples(self.text, self._positions(rows[firsts]), np.diff(np.append(firsts, len(rows))))

    def label_range(self) -> tuple[int, int]:
        return int(self.text.min()), int(self.text.max())

    def _positions(self, rows: Rows) -> Array:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows go from {rows.min()} to {rows.max()}, but there are {len(self)} samples")
        run = np.searchsorted(self.ends, rows, side="right")
        return np.asarray(self.starts[run] + rows - (self.ends[run] - self.counts[run]))


@dataclass(frozen=True, eq=False)
class SparseSamples(LabelledSamples):
    """Token counts as compressed sparse rows: sample r has the features indices[indptr[r] : indptr[r + 1]].

    A feature's value is its count divided by the sample's sum of counts. A batch is one tensor (B, L, 2) of (feature,
    value) pairs, padded with (0, 0) to the longest sample. Unlike torch's sparse tensors, it works in every engine.
    """

    indptr: Array  # (N + 1,) int64
    indices: Array  # (pairs,) uint16
    counts: Array  # (pairs,) uint8
    labels: Array  # (N,) uint8

    def __post_init__(self) -> None:
        pairs = int(self.indptr[-1])
        if len(self.indptr) != len(self.labels) + 1 or not pairs == len(self.indices) == len(self.counts):
            raise DataError("the sparse rows, their counts and labels do not fit together; pack the data again")

    @classmethod
    def from_tokens(cls, rows: Array, features: Array, labels: Array) -> "SparseSamples":
        """Count each feature in each row; (rows[k], features[k]) is one token, in any order."""
        width = int(features.max(initial=0)) + 1
        pairs, counts = np.unique(rows.astype(np.int64) * width + features, return_counts=True)
        pieces = -(-counts // LARGEST_COUNT)
        stored = np.full(int(pieces.sum()), LARGEST_COUNT)
        stored[np.cumsum(pieces) - 1] = counts - (pieces - 1) * LARGEST_COUNT
        pairs = np.repeat(pairs, pieces)
        indptr = np.searchsorted(pairs, np.arange(len(labels) + 1) * width).astype(np.int64)
        return cls(indptr, (pairs % width).astype(np.uint16), stored.astype(np.uint8), labels)

    @cached_property
    def values(self) -> Array:
        """The values of all pairs, float32 (pairs,), for code that works on the rows without batches."""
        sums = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        totals = sums[self.indptr[1:]] - sums[self.indptr[:-1]]
        return np.asarray((self.counts / np.repeat(totals, np.diff(self.indptr))).astype(np.float32))

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        columns = np.arange(lengths.max(initial=1))
        inside = columns < lengths[:, None]  # (B, L)
        at = np.where(inside, starts[:, None] + columns, 0)
        counts = np.where(inside, self.counts[at], 0).astype(np.float64)
        pairs = np.empty((*inside.shape, 2), dtype=np.float32)
        pairs[..., 0] = np.where(inside, self.indices[at], 0)
        pairs[..., 1] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return torch.from_numpy(pairs), torch.from_numpy(self.labels[rows].astype(np.int64))

    def take(self, rows: Rows) -> "SparseSamples":
        """Return a copy of the rows, in any order: the sparse engine needs contiguous rows."""
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseSamples(indptr, self.indices[at], self.counts[at], self.labels[rows])
