"""Compiled sums around the training of clients on sparse samples: over what clients give, and over test samples.

A file of its own must not call compiled functions of another: numba's cache on disk only watches the file at hand.
"""

import numpy as np

from fedgbo.engines.sparse_arrays import Array, Moved, Rows, compiled


@compiled
def add_up(moved: Moved, total: Array, features: int) -> None:
    """Add what clients gave to `total` (P,), in their order, so that its bits do not depend on who computed what."""
    classes = moved.moves.shape[1]
    for i in range(len(moved.sizes)):
        for out in range(moved.bounds[i], moved.bounds[i] + moved.sizes[i]):
            feature = moved.features[out]
            for c in range(classes):
                at = c * features + feature if feature < features else classes * features + c
                total[at] += moved.moves[out, c]


@compiled
def score(rows: Rows, params: Array, outputs: Array, first: int) -> None:
    """Fill `outputs` (n, classes) with the model's scores for samples first, first + 1, ..."""
    classes = outputs.shape[1]
    features = len(params) // classes - 1
    for i in range(len(outputs)):
        begin, end = rows.indptr[first + i], rows.indptr[first + i + 1]
        tokens = 0
        for n in range(begin, end):
            tokens += rows.counts[n]
        for c in range(classes):
            total = float(params[classes * features + c])
            for n in range(begin, end):
                total += params[c * features + rows.indices[n]] * np.float32(rows.counts[n] / max(tokens, 1))
            outputs[i, c] = total
