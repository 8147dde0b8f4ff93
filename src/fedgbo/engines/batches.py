"""The order in which a client walks through its samples."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from fedgbo.core.random import Rows, permutation


def minibatches(samples: int, batch_size: int | None, seed: int, *key: int) -> Iterator[Rows]:
    """Yield row numbers for ever: a shuffled order, reshuffled and wrapped round inside a batch when it runs out.

    A client with fewer samples than a batch repeats some. Without a batch size, every batch is all samples in order.
    `key` is the round and the client.

    >>> batches = minibatches(5, 3, 0, 1, 2)
    >>> sorted(np.concatenate([next(batches), next(batches)])[:5].tolist())
    [0, 1, 2, 3, 4]
    """
    if batch_size is None:
        while True:
            yield np.arange(samples)
    walk = np.empty(0, dtype=np.int64)
    for lap in count():
        walk = np.concatenate([walk, permutation(samples, seed, "batches", *key, lap)])
        while len(walk) >= batch_size:
            yield walk[:batch_size]
            walk = walk[batch_size:]
