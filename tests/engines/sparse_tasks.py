"""Small tasks on sparse samples."""

import numpy as np

import fedgbo
from fedgbo.data.federated import FederatedData
from fedgbo.data.samples import SparseSamples
from fedgbo.models.paper import SparseLinear

FEATURES, CLASSES = 40, 3


def sparse_samples(count, seed, features=FEATURES, classes=CLASSES):
    """Samples of 0 to 6 features, with counts up to 3."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 7, count)
    indices = [np.sort(rng.choice(features, length, replace=False)) for length in lengths]
    return SparseSamples(
        indptr=np.concatenate([[0], np.cumsum(lengths)]),
        indices=np.concatenate(indices).astype(np.uint16),
        counts=rng.integers(1, 4, lengths.sum()).astype(np.uint8),
        labels=rng.integers(0, classes, count).astype(np.uint8),
    )


def sparse_task(batch_size=8, dtype=None, clients=9, per_round=5, model=None, **settings):
    """Clients of 1 to 30 samples: some are smaller than a batch, some go round several times."""
    sizes = np.random.default_rng(5).integers(1, 31, clients)
    sizes[0] = 1
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = FederatedData(sparse_samples(offsets[-1], 1), offsets, sparse_samples(50, 2))
    build = model or (lambda: SparseLinear(FEATURES, CLASSES).to(dtype))
    return fedgbo.Task("sparse", data, build, per_round, batch_size, **settings)
