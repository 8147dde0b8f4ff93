"""Random numbers that belong to a row: the same for a row in every batch, without keeping any of them."""

import numpy as np

from fedgbo.core.random import Rows
from fedgbo.data.store import Array

STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


def uniforms(rows: Rows, count: int, seed: int) -> Array:
    """Return (rows, count) numbers from [0, 1), by SplitMix64 (Steele et al., 2014) of the row, the column and seed.

    >>> whole, one = uniforms(np.arange(5), 3, seed=1), uniforms(np.array([4]), 3, seed=1)
    >>> bool((whole[4] == one[0]).all())
    True
    """
    start = (seed + 1) * STEP % 2**64
    z: Array = rows.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    z = (_mix(z + np.uint64(start)) + np.uint64(STEP)) * np.uint64(STEP)
    numbers: Array = (_mix(z) >> np.uint64(11)) * 2.0**-53
    return numbers


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed
