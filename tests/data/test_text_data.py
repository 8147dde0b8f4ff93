import numpy as np
import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.sent140 import sparse_data
from fedgbo.data.shakespeare import window_data
from fedgbo.data.synthetic_text import synthetic_text, synthetic_tweets

CASES = [(window_data, synthetic_text(2, 10, 0)), (sparse_data, synthetic_tweets(2, 10, 0))]


@pytest.mark.parametrize(("join", "arrays"), CASES)
def test_missing_arrays_are_named(join, arrays):
    for missing in ("train_offsets", "test_counts"):
        some = {name: array for name, array in arrays.items() if name != missing}
        with pytest.raises(DataError, match=f"here lacks the array {missing}; pack the data again"):
            join(some, "here")


@pytest.mark.parametrize(("join", "arrays"), CASES)
def test_offsets_must_fit(join, arrays):
    whole = arrays["train_offsets"]
    for wrong in (whole[:-1], whole[1:], whole[:1], np.insert(whole, 1, 0)):
        with pytest.raises(DataError, match="train_offsets must rise from 0 to"):
            join({**arrays, "train_offsets": wrong}, "here")
