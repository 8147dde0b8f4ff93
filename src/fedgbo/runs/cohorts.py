"""Who takes part in a round."""

from functools import lru_cache

import numpy as np

from fedgbo.core.random import stream, words_of
from fedgbo.engines.ahead import Cohorts
from fedgbo.engines.layers.native import library

DRAWN = 1024  # clients that are drawn at a time: so a draw costs a third of what it does between other work
LARGEST = 256  # cohort that the C loop draws: it sorts by inserting
WORD = 2**32


def sample(clients: int, cohort_size: int, seed: int, t: int) -> list[int]:
    """Return round t's clients: uniform, without replacement, in ascending order."""
    cohort: list[int] = upcoming(clients, cohort_size, seed, t, 1)[0].tolist()
    return cohort


def upcoming(clients: int, cohort_size: int, seed: int, t: int, most: int) -> Cohorts:
    """Return the clients of round t and of some rounds after it: as far as they are drawn together, `most` in all."""
    together = max(1, DRAWN // cohort_size)
    block, at = divmod(t, together)
    return _cohorts(clients, cohort_size, seed, block, together)[at : at + most]


@lru_cache(maxsize=8)
def _cohorts(clients: int, cohort_size: int, seed: int, block: int, together: int) -> Cohorts:
    """Return the clients of one block of rounds after the other."""
    cohorts, first = np.empty((together, cohort_size), np.int64), block * together
    # a short run does not wait for the C loops to be built
    native = library() if block and _as_numpy(clients, cohort_size, first + together) else None
    if native is not None:
        words = words_of(seed, "cohort", first)
        native.fedgbo_draw(together, cohort_size, clients, len(words), words.ctypes.data, cohorts.ctypes.data)
    else:
        for t, cohort in enumerate(cohorts, start=first):
            cohort[:] = stream(seed, "cohort", t).choice(clients, cohort_size, replace=False)
        cohorts.sort(axis=1)
    cohorts.flags.writeable = False
    return cohorts


def _as_numpy(clients: int, cohort_size: int, end: int) -> bool:
    """Return whether the C loop draws as numpy does, which goes another way for large parts of many clients."""
    large = clients > 10_000 and cohort_size > clients // 50
    return cohort_size <= LARGEST and not large and clients < WORD and end <= WORD
