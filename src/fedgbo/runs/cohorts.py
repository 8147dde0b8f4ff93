"""Who takes part in a round."""

from functools import lru_cache

import numpy as np

from fedgbo.core.random import stream, words_of
from fedgbo.engines.ahead import Cohorts
from fedgbo.engines.layers.native import library

Cohort = np.ndarray[tuple[int], np.dtype[np.int64]]
DRAWN = 2048  # clients that are drawn at a time: so a draw costs a third of what it does between other work
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
    rounds = range(block * together, (block + 1) * together)
    # a short run does not wait for the C loops to be built
    cohorts = _drawn_in_c(clients, cohort_size, seed, rounds) if block else None
    if cohorts is None:
        cohorts = np.array([_drawn(clients, cohort_size, seed, t) for t in rounds])
    cohorts.flags.writeable = False
    return cohorts


def _drawn(clients: int, cohort_size: int, seed: int, t: int) -> Cohort:
    return np.sort(stream(seed, "cohort", t).choice(clients, cohort_size, replace=False))


def _drawn_in_c(clients: int, cohort_size: int, seed: int, rounds: range) -> Cohorts | None:
    """Draw what numpy would draw; None if that cannot be done. numpy may change its ways: it is asked for the first."""
    native = library() if _as_numpy(clients, cohort_size, rounds.stop) else None
    if native is None:
        return None
    cohorts, words = np.empty((len(rounds), cohort_size), np.int64), words_of(seed, "cohort", rounds.start)
    native.fedgbo_draw(len(rounds), cohort_size, clients, len(words), words.ctypes.data, cohorts.ctypes.data)
    return cohorts if np.array_equal(cohorts[0], _drawn(clients, cohort_size, seed, rounds.start)) else None


def _as_numpy(clients: int, cohort_size: int, end: int) -> bool:
    """Return whether the C loop draws as numpy does, which goes another way for large parts of many clients."""
    large = clients > 10_000 and cohort_size > clients // 50
    return cohort_size <= LARGEST and not large and clients < WORD and end <= WORD
