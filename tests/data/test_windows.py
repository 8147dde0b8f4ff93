import numpy as np
import pytest
import torch

from fedgbo.core.errors import DataError
from fedgbo.data.samples import WindowSamples

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
    with pytest.raises(DataError, match="do not fit the text"):
        WindowSamples(TEXT, np.array([start]), np.array([count]))


def test_label_range():
    assert WindowSamples(TEXT, np.array([0]), np.array([900])).label_range() == (0, 78)
