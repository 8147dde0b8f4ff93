"""Random streams with names.

Every draw comes from a stream named by (seed, purpose, round, client, ...), never from a global generator. So a result
does not depend on the order of the clients, on how many workers there are, or on whether the run was resumed.
"""

from zlib import crc32

import numpy as np

from fedgbo.core.errors import ConfigError


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator named by seed, purpose and key.

    >>> bool(stream(0, "cohort", 3).integers(100) == stream(0, "cohort", 3).integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(purpose.encode()), *key])


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """Return a seed for torch's own generator (model initialisation, dropout)."""
    return int(stream(seed, purpose, *key).integers(2**63 - 1))


def check_seed(seed: int) -> None:
    """Raise unless `seed` is a whole number from 0 on."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be a whole number from 0 on, not {seed!r}")
