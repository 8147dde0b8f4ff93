import numpy as np
import pytest

import fedgbo
from fedgbo.core.random import check_seed, stream


def test_streams_differ_by_every_part_of_their_name():
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    draws = [tuple(stream(*name).integers(2**60, size=4)) for name in names]
    assert len(set(draws)) == len(names)
    assert draws[0] == tuple(stream(0, "a", 0, 0).integers(2**60, size=4))


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0"])
def test_bad_seeds(seed):
    with pytest.raises(fedgbo.ConfigError, match="seed must be a whole number"):
        check_seed(seed)
    check_seed(np.int64(3))
