import numpy as np
import pytest
import torch

from fedgbo.core.errors import DataError
from fedgbo.data.samples import SparseSamples, WindowSamples
from fedgbo.data.tree import digest_of

TEXT = np.random.default_rng(0).integers(79, size=1000).astype(np.uint8)


def test_rows_are_found_in_their_runs():
    samples = WindowSamples(TEXT, np.array([500, 0, 919]), np.array([3, 20, 1]))
    firsts = [500, 501, 502, *range(20), 919]
    assert len(samples) == 24
    rows = np.array([23, 0, 2, 3, 22, 3])
    x, y = samples.batch(rows)
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
    assert x.tolist() == [TEXT[firsts[r] : firsts[r] + 80].tolist() for r in rows]
    assert y.tolist() == [TEXT[firsts[r] + 80] for r in rows]


def test_rows_outside_are_refused():
    samples = WindowSamples(TEXT, np.array([0]), np.array([5]))
    for row in (-1, 5):
        with pytest.raises(IndexError, match="there are 5 samples"):
            samples.batch(np.array([row]))


@pytest.mark.parametrize(("start", "count"), [(919, 2), (-1, 1), (0, 0)])
def test_windows_beyond_the_text_are_refused(start, count):
    with pytest.raises(DataError, match="do not match the text"):
        WindowSamples(TEXT, np.array([start]), np.array([count]))


def test_label_range():
    assert WindowSamples(TEXT, np.array([0]), np.array([900])).label_range() == (0, 78)


INDPTR = np.array([0, 2, 3, 6])
SAMPLES = SparseSamples(
    INDPTR,
    np.array([7, 4999, 3, 1, 2, 3], np.uint16),
    np.array([1, 3, 2, 1, 1, 2], np.uint8),
    np.array([0, 1, 1], np.uint8),
)


def test_a_batch_has_pairs_of_feature_and_share():
    x, y = SAMPLES.batch(np.array([2, 0, 1, 0]))
    assert x.dtype == torch.float32
    assert x.tolist() == [
        [[1, 0.25], [2, 0.25], [3, 0.5]],
        [[7, 0.25], [4999, 0.75], [0, 0]],
        [[3, 1], [0, 0], [0, 0]],
        [[7, 0.25], [4999, 0.75], [0, 0]],
    ]
    assert y.tolist() == [1, 0, 1, 0]
    assert SAMPLES.batch(np.array([1]))[0].shape == (1, 1, 2)
    assert SAMPLES.label_range() == (0, 1)


def test_values_of_all_pairs():
    assert SAMPLES.values.tolist() == [0.25, 0.75, 1, 0.25, 0.25, 0.5]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="do not fit together"):
        SparseSamples(INDPTR, np.zeros(5, np.uint16), np.zeros(5, np.uint8), np.zeros(3, np.uint8))


def test_tokens_are_counted_by_row():
    bags = SparseSamples.from_tokens(np.array([3, 0, 3, 3, 0]), np.array([5, 2, 1, 5, 0]), np.arange(5))
    assert bags.indptr.tolist() == [0, 2, 2, 2, 4, 4]
    assert bags.indices.tolist() == [0, 2, 1, 5]
    assert bags.counts.tolist() == [1, 1, 1, 2]
    some = bags.take(np.array([3, 1, 0]))
    assert (some.indptr.tolist(), some.indices.tolist()) == ([0, 2, 2, 4], [1, 5, 0, 2])
    assert some.labels.tolist() == [3, 1, 0]


def test_counts_above_a_byte_become_several_pairs():
    rows, features = np.repeat([0, 1], [700, 510]), np.repeat([4, 2], [700, 510])
    bags = SparseSamples.from_tokens(rows, features, np.zeros(2, np.uint8))
    assert bags.indptr.tolist() == [0, 3, 5]
    assert bags.indices.tolist() == [4, 4, 4, 2, 2]
    assert bags.counts.tolist() == [255, 255, 190, 255, 255]
    x, _ = bags.batch(np.array([0, 1]))
    torch.testing.assert_close(x[..., 1].sum(1), torch.ones(2))


@pytest.mark.filterwarnings("error")
def test_an_array_has_the_digest_of_the_tensor_even_if_it_is_read_only():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array.setflags(write=False)
    transposed = torch.arange(12, dtype=torch.float32).reshape(3, 4).T
    assert digest_of(array) == digest_of(torch.arange(12, dtype=torch.float32).reshape(3, 4))
    assert digest_of(array.T) == digest_of(transposed) != digest_of(array)
    assert digest_of(np.zeros(3, bool)) == digest_of(torch.zeros(3, dtype=torch.bool))
