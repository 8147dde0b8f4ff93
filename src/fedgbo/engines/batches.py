"""The order in which a client walks through its samples."""

from collections.abc import Iterator

import numpy as np

from fedgbo.data.samples import Rows


def minibatches(samples: int, batch_size: int | None, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield row numbers for ever: a shuffled order, reshuffled and wrapped round inside a batch when it runs out.

    A client with fewer samples than a batch repeats some. Without a batch size, every batch is all samples in order.

    >>> batches = minibatches(5, 3, np.random.default_rng(0))
    >>> sorted(np.concatenate([next(batches), next(batches)])[:5].tolist())
    [0, 1, 2, 3, 4]
    """
    everything = np.arange(samples)
    if batch_size is None:
        while True:
            yield everything
    order = rng.permutation(samples)
    while True:
        while len(order) < batch_size:
            order = np.concatenate([order, rng.permutation(samples)])
        yield order[:batch_size]
        order = order[batch_size:]
