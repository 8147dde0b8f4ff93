"""The order in which a client goes through its samples."""

from collections.abc import Iterator

import numpy as np

from fedgbo.core import Rows, name_of, permutation
from fedgbo.native import library


def minibatches(samples: int, batch_size: int | None, seed: int, t: int, client: int, steps: int = 1) -> Iterator[Rows]:
    """Yield row numbers for ever: a shuffled order, reshuffled and wrapped round inside a batch when it runs out.

    A client with fewer samples than a batch repeats some. Without a batch size, every batch is all samples in order.
    The first `steps` minibatches are drawn together.

    >>> batches = minibatches(5, 3, seed=0, t=1, client=2)
    >>> sorted(np.concatenate([next(batches), next(batches)])[:5].tolist())
    [0, 1, 2, 3, 4]
    """
    if batch_size is None:
        while True:
            yield np.arange(samples)
    begin, end = 0, steps * batch_size
    while True:
        rows = walk(samples, end, seed, t, client)
        yield from (rows[at : at + batch_size] for at in range(begin, end, batch_size))
        begin, end = end, 2 * end


def walk(samples: int, length: int, seed: int, t: int, client: int) -> Rows:
    """Return the first rows of a client's walk through its samples in round t: one random order after the other."""
    native = library()
    if native is not None:
        rows = np.empty(length, np.int64)
        if native.fedgbo_walk(name_of(seed, "batches", t, client), samples, length, rows.ctypes.data):
            return rows
    laps = [permutation(samples, seed, "batches", t, client, lap) for lap in range(-(-length // samples))]
    return np.concatenate(laps)[:length]
