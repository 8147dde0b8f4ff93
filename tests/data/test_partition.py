import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgbo
from fedgbo import partition
from fedgbo.core.errors import DataError
from fedgbo.data.partition import pachinko

LABELS = np.repeat(np.arange(10), 50)
FINE = np.arange(500) // 5  # 100 fine classes of 5
COARSE = FINE // 5
ALL = {
    "iid": lambda seed: partition.iid(LABELS, 20, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 20, alpha=0.1, seed=seed),
    "shards": lambda seed: partition.shards(LABELS, 20, 5, seed=seed),
    "pachinko": lambda seed: partition.pachinko(COARSE, FINE, 20, 25, seed=seed),
}


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_every_sample_goes_to_one_client(name, seed):
    parts = ALL[name](seed)
    assert len(parts) == 20
    assert {len(part) for part in parts} == {25}
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))


@pytest.mark.parametrize("name", ALL)
def test_seeded(name):
    first, again, other = ALL[name](1), ALL[name](1), ALL[name](2)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def classes_of(parts, labels):
    return np.mean([len(np.unique(labels[part])) for part in parts])


def test_skew_grows_as_alpha_falls():
    counts = [classes_of(partition.dirichlet(LABELS, 20, alpha), LABELS) for alpha in (0.01, 0.1, 1.0, 100.0)]
    assert counts == sorted(counts)
    assert counts[0] < 3
    assert counts[-1] > 8


def test_shards_have_few_classes():
    assert classes_of(partition.shards(LABELS, 50, 1), LABELS) == 1


def test_pachinko_keeps_to_few_coarse_classes():
    labels = np.repeat(np.arange(100), 100)
    parts = partition.pachinko(labels // 5, labels, clients=10, samples=100)
    # Dirichlet(0.1) over 20 classes: 100 draws meet about 2 ln(1 + 100 / 2) = 7.9 of them
    assert 6 < classes_of(parts, labels // 5) < 10
    assert classes_of(parts, labels) > classes_of(parts, labels // 5)


def test_unequal_sizes_by_one():
    sizes = [len(part) for part in partition.dirichlet(LABELS[:101], 10, 0.5)]
    assert sum(sizes) == 101
    assert max(sizes) - min(sizes) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(3, clients=4), "clients is 4, but there are only 3 samples"),
        (lambda: partition.iid(3, clients=0), "clients must be a whole number of at least 1"),
        (lambda: partition.dirichlet(LABELS, 5, alpha=0), "alpha must be a finite number above 0"),
        (lambda: partition.dirichlet(LABELS[:0], 5, alpha=1), "labels must be one column"),
        (lambda: partition.shards(LABELS, 300, 2), "600, but there are only 500 samples"),
        (lambda: partition.pachinko(COARSE[:10], FINE, 2, 2), "10 coarse labels but 500 fine ones"),
        (lambda: partition.pachinko(np.arange(500) % 2, FINE, 2, 2), "lies under two coarse labels"),
        (lambda: partition.pachinko(COARSE, FINE, 100, 10), "1000, but there are only 500"),
        (lambda: partition.by_id(np.zeros((2, 2))), "ids must be one column"),
        (lambda: partition.iid(10, 2, seed=-1), "seed must be a whole number"),
    ],
)
def test_bad_requests(call, message):
    with pytest.raises(fedgbo.FedGBOError, match=message):
        call()


FINE_20 = np.arange(2000) % 20
COARSE_4 = FINE_20 // 5


def test_every_sample_is_dealt_once():
    parts = pachinko(COARSE_4, FINE_20, clients=40, samples=50)
    assert [len(rows) for rows in parts] == [50] * 40
    assert sorted(np.concatenate(parts)) == list(range(2000))


def test_same_seed_same_split_and_another_seed_another():
    first, again, other = (pachinko(COARSE_4, FINE_20, 10, 50, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (np.concatenate(first) != np.concatenate(other)).any()


def test_few_coarse_classes_a_client_but_their_fine_ones_evenly():
    early = pachinko(COARSE_4, FINE_20, clients=8, samples=50, alpha=0.01, beta=1e6)  # before any class runs out
    for rows in early[:3]:
        assert len(np.unique(COARSE_4[rows])) == 1
        assert np.bincount(FINE_20[rows]).max() < 25


def test_large_alpha_spreads_over_all_coarse_classes():
    for rows in pachinko(COARSE_4, FINE_20, clients=8, samples=100, alpha=1e6):
        assert len(np.unique(COARSE_4[rows])) == 4


def test_a_class_that_ran_out_leaves_the_mixture():
    fine = np.array([0] * 3 + [1] * 97)
    parts = pachinko(np.zeros(100, dtype=int), fine, clients=2, samples=50, beta=1e6)
    assert (fine[np.concatenate(parts)] == 0).sum() == 3
    assert (fine[parts[0]] == 0).sum() == 3  # half of 50 draws want class 0, and find 3 samples


def test_a_fine_class_under_two_coarse_ones_is_refused():
    with pytest.raises(DataError, match="fine label 3 lies under two coarse labels"):
        pachinko([0, 0, 1], [1, 3, 3], clients=1, samples=1)
