"""The order in which a client goes through its samples."""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch

from fedgbo.core import Rows, permutation
from fedgbo.native import library

PURPOSE = crc32(b"batches")  # of the random stream, as name_of has it


@dataclass(frozen=True)
class Pause:
    """After so many minibatches, a client waits; see engines/threads.py."""

    minibatches: int
    wait: Callable[[], None]


class Batches:
    """A client's minibatches in one round: a shuffled order, reshuffled and wrapped round inside a batch when it ends.

    A client with fewer samples than a batch repeats some. Without a batch size, every batch is all samples in order.
    """

    def __init__(self, samples: int, batch_size: int | None, seed: int, t: int, client: int, expected: int = 1) -> None:
        self._samples, self._batch, self._key = samples, batch_size, (seed, t, client)
        self._expected = expected  # minibatches; more can be taken
        self._rows, self._at = np.empty(0, np.int64), 0

    def take(self, count: int = 1) -> Rows:
        """Return the row numbers of the next `count` minibatches, one after the other.

        >>> batches = Batches(5, 3, seed=0, t=1, client=2)
        >>> sorted(np.concatenate([batches.take(), batches.take()])[:5].tolist())
        [0, 1, 2, 3, 4]
        """
        if self._batch is None:
            return np.tile(np.arange(self._samples), count)
        begin, self._at = self._at, self._at + count * self._batch
        if self._at > len(self._rows):
            length = max(self._at, 2 * len(self._rows), self._expected * self._batch)
            self._rows = walk(self._samples, length, *self._key)
        return self._rows[begin : self._at]


def walk(samples: int, length: int, seed: int, t: int, client: int) -> Rows:
    """Return the first rows of a client's walk through its samples in round t: one random order after the other."""
    native = library()
    if native is not None:
        rows = torch.empty(length, dtype=torch.int64)  # torch gives its address faster than numpy
        if native.fedgbo_walk(seed, PURPOSE, t, client, samples, length, rows.data_ptr()):
            return rows.numpy()
    laps = [permutation(samples, seed, "batches", t, client, lap) for lap in range(-(-length // samples))]
    return np.concatenate(laps)[:length]
