"""The arrays that the kernels for sparse samples work on, and how those kernels are compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


class Rows(NamedTuple):
    """The samples of all clients, as in SparseSamples."""

    indptr: Array
    indices: Array
    counts: Array
    labels: Array


class Step(NamedTuple):
    """The model x that a round begins with, and the step that all clients take; vectors as in nn.Linear, (P,)."""

    start: Array
    offset: Array
    share: float  # that the offset is multiplied by
    scale: Array
    pull: float


class Table(NamedTuple):
    """What one worker needs for one client at a time: row s is of the s-th feature that the client met."""

    row_of: Array  # (features + 1,): of each feature; -1 for none. The bias is one more feature, and always 1
    features: Array  # (features + 1,): the other way round
    weights: Array  # (features + 1, 4, classes): y, x, offset, scale


class Batch(NamedTuple):
    """Samples in a table's terms: sample i has the rows at[begins[i] : ends[i]], with those values."""

    begins: Array
    ends: Array
    at: Array
    values: Array
    labels: Array


class Moved(NamedTuple):
    """What clients give: client i's features and how far they moved, from bounds[i] on, sizes[i] of them."""

    bounds: Array
    sizes: Array
    features: Array
    moves: Array  # (·, classes): x - y_K, less that of a client that never met the feature
    losses: Array  # mean over the client's minibatches


def compiled(function: F) -> F:
    """Compile `function` at its first call, without the lock of the interpreter, and keep the result on disk."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # nowhere to write: compile it again in every process
        return cast(F, numba.njit(nogil=True)(function))
