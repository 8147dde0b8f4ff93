"""Student's t over seeds: the interval of a mean, and two algorithms compared on the same seeds.

Two runs with the same seed start from the same model and see the same cohorts and batches, so the seeds' share of the
noise is in both, and differences are known better than each accuracy is. scipy.special has all that is needed;
scipy.stats would take three times as long to import.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from fedgbo.core.errors import ConfigError
from fedgbo.reports.load import Floats


@dataclass(frozen=True)
class Paired:
    """A mean difference over the seeds that both have."""

    seeds: int
    difference: float
    interval: float | None  # half of its 95% confidence interval; None with a single seed
    p: float | None  # two-sided, of there being no difference; None with a single seed


def confidence(values: Floats) -> Floats:
    """Return half of the 95% Student's t interval of the mean over the first axis; NaN with a single value."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    half: Floats = stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def paired(ours: Floats, theirs: Floats) -> Paired:
    """Compare two vectors with one value a seed, by the paired t test.

    >>> both = paired(np.array([3.0, 5.0, 7.0]), np.array([2.0, 3.0, 4.0]))
    >>> both.difference, f"{both.interval:.4f}", f"{both.p:.4f}"
    (2.0, '2.4841', '0.0742')
    """
    if ours.shape != theirs.shape or ours.ndim != 1 or not len(ours):
        raise ConfigError("a paired comparison needs two lists with one value for each seed, of the same seeds")
    n, differences = len(ours), ours - theirs
    mean = float(differences.mean())
    if n < 2:
        return Paired(n, mean, None, None)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if error == 0:  # all seeds say the same
        return Paired(n, mean, 0.0, 1.0 if mean == 0 else 0.0)
    return Paired(n, mean, float(confidence(differences)), 2 * float(stdtr(n - 1, -abs(mean) / error)))
