from collections import Counter

import numpy as np
import pytest

import fedgbo
from fedgbo.core.random import check_seed, permutation, stream


def test_streams_differ_by_every_part_of_their_name():
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    draws = [tuple(stream(*name).integers(2**60, size=4)) for name in names]
    assert len(set(draws)) == len(names)
    assert draws[0] == tuple(stream(0, "a", 0, 0).integers(2**60, size=4))


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0", 2**64])
def test_bad_seeds(seed):
    with pytest.raises(fedgbo.ConfigError, match="seed must be a whole number"):
        check_seed(seed)
    check_seed(np.int64(3))


def test_permutations_are_uniform():
    seen = Counter(tuple(permutation(4, 1, "test", i).tolist()) for i in range(24_000))
    assert len(seen) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 49.7  # chi-squared, 23 degrees: p = 0.001


def test_permutations_differ_by_every_part_of_their_name():
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (2**63, "a", 0, 0)]
    orders = {tuple(permutation(50, *name).tolist()) for name in names}
    assert len(orders) == len(names)
