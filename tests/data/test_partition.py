import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgbo
from fedgbo import partition

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
