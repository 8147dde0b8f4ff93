"""The scores of a linear model for sparse samples, compiled."""

import numpy as np

# with ded591fcc21e34a5: numba looks for changes in this file alone, so a test holds that these are noticed here
from fedgbo.engines.sparse_arrays import Array, Rows, compiled


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
