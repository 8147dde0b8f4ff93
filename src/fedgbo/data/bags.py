"""Bags of tokens as compressed sparse rows: never a dense vector for a sample."""

from dataclasses import dataclass

import numpy as np

from fedgbo.data.store import Array

LARGEST = 255  # what a count of one byte holds; a larger count becomes several pairs of the same feature


@dataclass(frozen=True, eq=False)
class Bags:
    """Row r has the features indices[indptr[r] : indptr[r + 1]], as often as counts says."""

    indptr: Array  # (rows + 1,) int64
    indices: Array  # (pairs,) uint16
    counts: Array  # (pairs,) uint8

    def take(self, rows: Array) -> "Bags":
        """Return these rows, in this order."""
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Bags(indptr, self.indices[at], self.counts[at])


def count_tokens(rows: Array, features: Array, size: int) -> Bags:
    """Count each feature in each of `size` rows; (rows[k], features[k]) is one token, in any order."""
    width = int(features.max(initial=0)) + 1
    pairs, counts = np.unique(rows.astype(np.int64) * width + features, return_counts=True)
    pieces = -(-counts // LARGEST)
    last = np.cumsum(pieces) - 1
    filled = np.full(int(pieces.sum()), LARGEST)
    filled[last] = counts - (pieces - 1) * LARGEST
    pairs = np.repeat(pairs, pieces)
    indptr = np.searchsorted(pairs, np.arange(size + 1) * width)
    return Bags(indptr.astype(np.int64), (pairs % width).astype(np.uint16), filled.astype(np.uint8))
