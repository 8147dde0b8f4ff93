import numpy as np
import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.partition import pachinko

FINE = np.arange(2000) % 20
COARSE = FINE // 5


def test_every_sample_is_dealt_once():
    parts = pachinko(COARSE, FINE, clients=40, samples=50)
    assert [len(rows) for rows in parts] == [50] * 40
    assert sorted(np.concatenate(parts)) == list(range(2000))


def test_same_seed_same_split_and_another_seed_another():
    first, again, other = (pachinko(COARSE, FINE, 10, 50, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.concatenate(first) != np.concatenate(other)).any()


def test_few_coarse_classes_a_client_but_their_fine_ones_evenly():
    early = pachinko(COARSE, FINE, clients=8, samples=50, alpha=0.01, beta=1e6)  # before any class runs out
    for rows in early[:3]:
        assert len(np.unique(COARSE[rows])) == 1
        assert np.bincount(FINE[rows]).max() < 25


def test_large_alpha_spreads_over_all_coarse_classes():
    for rows in pachinko(COARSE, FINE, clients=8, samples=100, alpha=1e6):
        assert len(np.unique(COARSE[rows])) == 4


def test_a_class_that_ran_out_leaves_the_mixture():
    fine = np.array([0] * 3 + [1] * 97)
    parts = pachinko(np.zeros(100, dtype=int), fine, clients=2, samples=50, beta=1e6)
    assert (fine[np.concatenate(parts)] == 0).sum() == 3
    assert (fine[parts[0]] == 0).sum() == 3  # half of 50 draws want class 0, and find 3 samples


def test_a_fine_class_under_two_coarse_ones_is_refused():
    with pytest.raises(DataError, match="fine label 3 lies under two coarse labels"):
        pachinko([0, 0, 1], [1, 3, 3], clients=1, samples=1)
