"""Held-out data: a part of every client's training samples, to choose settings by without looking at the test set."""

import numpy as np

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.core.random import Rows, permutation
from fedgbo.data.federated import FederatedData


def hold_out(data: FederatedData, share: float = 0.2, seed: int = 0) -> FederatedData:
    """Return the data with `share` of each client's training samples, drawn at random, in place of the test set.

    Samples that overlap their neighbours, as windows over a text do, are not drawn: the last ones are held out, and
    those between the two parts that overlap both are left out. Every client keeps at least one sample to train on, so
    that one with a single sample (or too short a text) holds nothing out. Only row numbers are made, no copies, except
    of sparse samples. The old test set is not touched.
    """
    if not 0 < share < 1:
        raise ConfigError(f"the share held out must be above 0 and below 1, not {share!r}; 0.2 is a good first try")
    sizes, gap = np.diff(data.offsets), data.train.overlap
    held = np.floor(share * sizes + 0.5).astype(np.int64)
    held = np.where(sizes - held - gap >= 1, held, 0)
    kept = np.where(held > 0, sizes - held - gap, sizes)
    if not held.any():
        raise DataError(
            f"no client has enough samples to hold out {share:g} of them (the largest has {sizes.max()}); "
            "hold out a larger share, or tune on the test set"
        )
    order = np.arange(sizes.sum()) if gap else _shuffled(sizes, seed)
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of a row in its client's order
    first = data.offsets[0]
    train = first + np.sort(order[place < np.repeat(kept, sizes)])
    test = first + np.sort(order[place >= np.repeat(sizes - held, sizes)])
    offsets = np.concatenate([[0], np.cumsum(kept)])
    return FederatedData(data.train.take(train), offsets, data.train.take(test))


def _shuffled(sizes: Rows, seed: int) -> Rows:
    """Return all rows, client by client, each client's in a random order."""
    rows = permutation(int(sizes.sum()), seed, "held out")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    shuffled: Rows = rows[np.argsort(owner[rows], kind="stable")]
    return shuffled
