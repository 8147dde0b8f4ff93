"""Random streams with names.

Every draw comes from a stream named by (seed, purpose, round, client, ...), never from a global generator. So a result
does not depend on the order of the clients, on how many workers there are, or on whether the run was resumed.
"""

from typing import Any
from zlib import crc32

import numpy as np

from fedgbo.core.errors import ConfigError

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator named by seed, purpose and key.

    >>> bool(stream(0, "cohort", 3).integers(100) == stream(0, "cohort", 3).integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(purpose.encode()), *key])


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a seed for torch's own generator (model initialisation, dropout)."""
    return int(stream(seed, purpose, *key).integers(2**63 - 1))


def permutation(n: int, seed: int, purpose: str, *key: int) -> Rows:
    """Return a random order of 0 ... n - 1, drawn from the stream of that name.

    Each number gets a hash of the stream's name and itself, and the hashes are sorted. Unlike a generator this has no
    state to set up, so that it costs next to nothing for small n, and it is a few lines in any language.

    >>> permutation(5, 0, "batches", 1, 2).tolist()
    [4, 3, 2, 0, 1]
    """
    name = np.uint64(name_of(seed, purpose, *key))
    return np.argsort(_mixed(np.arange(n, dtype=np.uint64) ^ name), kind="stable")


def name_of(seed: int, purpose: str, *key: int) -> int:
    """Return the 64 bits that stand for the stream of that name in `permutation`."""
    name = 0
    for part in (seed, crc32(purpose.encode()), *key):
        name = _mixed(name ^ part)
    return name


_MASK = 2**64 - 1


def _mixed(numbers: Any) -> Any:
    """Steele, Lea and Flood's SplitMix64, for an integer or an array: a bijection whose outputs look random."""
    whole = isinstance(numbers, int)
    numbers = numbers + 0x9E3779B97F4A7C15 & _MASK if whole else numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ numbers >> shift) * factor & _MASK
    return numbers ^ numbers >> 31


def check_seed(seed: int) -> None:
    """Raise unless `seed` is a whole number of 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MASK:
        raise ConfigError(f"seed must be a whole number from 0 to 2^64 - 1, not {seed!r}")
