"""Samples with sparse features: token counts, divided by the number of counted tokens of the sample."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.core.random import Rows
from fedgbo.data.bags import Bags
from fedgbo.data.samples import Samples
from fedgbo.data.store import Array


@dataclass(frozen=True, eq=False)
class SparseSamples(Samples):
    """Compressed sparse rows: sample r has the features indices[indptr[r] : indptr[r + 1]] and their counts.

    A batch is one tensor (B, L, 2) of (feature, value) pairs, L being the largest number of pairs in the batch, filled
    up with (0, 0): a plain tensor goes through any engine, where torch's sparse ones do not, and it stays small.
    """

    indptr: Array  # (N + 1,) int64
    indices: Array  # (pairs,) uint16
    counts: Array  # (pairs,) uint8
    labels: Array  # (N,) uint8

    def __post_init__(self) -> None:
        pairs = int(self.indptr[-1])
        if len(self.indptr) != len(self.labels) + 1 or not pairs == len(self.indices) == len(self.counts):
            raise DataError("the sparse rows, their counts and labels do not fit together; pack the data again")

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.labels)

    @cached_property
    def values(self) -> Array:
        """The value of every pair, float32 (pairs,): for code that works on the rows without making batches."""
        sums = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        totals = sums[self.indptr[1:]] - sums[self.indptr[:-1]]
        values: Array = (self.counts / np.repeat(totals, np.diff(self.indptr))).astype(np.float32)
        return values

    def batch(self, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return (feature, value) pairs (B, L, 2) and labels (B,)."""
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

    def labels_of(self, rows: Rows) -> Array:
        """Return the labels of `rows`."""
        return self.labels[rows]

    def take(self, rows: Rows) -> "SparseSamples":
        """Return a copy of the rows: the sparse engine works on rows that lie one after the other."""
        bags = Bags(self.indptr, self.indices, self.counts).take(rows)
        return SparseSamples(bags.indptr, bags.indices, bags.counts, self.labels[rows])

    def label_range(self) -> tuple[int, int]:
        """Return the smallest and the largest label."""
        return int(self.labels.min()), int(self.labels.max())
