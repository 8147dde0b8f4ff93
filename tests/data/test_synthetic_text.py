import numpy as np
import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.data.shakespeare import window_data
from fedgbo.data.synthetic_text import synthetic_text

ARRAYS = synthetic_text(40, 500, seed=0)


def bigrams(text):
    table = np.zeros((79, 79))
    np.add.at(table, (text[:-1], text[1:]), 1)
    return table


def client(c):
    start = ARRAYS["train_starts"][c]
    return ARRAYS["text"][start : start + ARRAYS["train_counts"][c] + 80]


def test_shape_is_that_of_the_real_clients():
    data = window_data(ARRAYS, "here")
    sizes = np.diff(data.offsets)
    assert data.clients == 40
    assert abs(sizes.mean() - 5573) < 1
    assert sizes.min() >= 721
    assert sizes.max() > 3 * np.median(sizes)
    assert abs(len(data.test) - 500) < 40
    assert ARRAYS["text"].max() < 79


def test_shorter_texts_keep_their_proportions():
    sizes = np.diff(synthetic_text(40, 500, seed=0, mean=64)["train_offsets"])
    assert abs(sizes.mean() - 64) < 1
    assert sizes.min() >= 8
    assert np.corrcoef(sizes, ARRAYS["train_counts"])[0, 1] > 0.99


def test_train_and_test_windows_have_no_character_to_predict_in_common():
    ends = ARRAYS["train_starts"] + ARRAYS["train_counts"] + 80
    assert (ARRAYS["test_starts"] >= ends - 1).all()
    assert (ARRAYS["train_starts"][1:] >= (ARRAYS["test_starts"] + ARRAYS["test_counts"] + 80)[:-1]).all()


def test_the_next_character_can_be_learnt():
    data = window_data(ARRAYS, "here")
    best = bigrams(ARRAYS["text"][: ARRAYS["test_starts"][-1]]).argmax(axis=1)
    x, y = data.test.batch(np.arange(len(data.test)))
    common = np.bincount(ARRAYS["text"]).max() / len(ARRAYS["text"])
    assert (best[x[:, -1].numpy()] == y.numpy()).mean() > common + 0.08


def test_clients_differ_more_than_the_halves_of_one():
    def distance(a, b):
        a, b = (bigrams(t) / (len(t) - 1) for t in (a, b))
        return np.abs(a - b).sum() / 2

    large = np.argsort(-ARRAYS["train_counts"])[:10]
    within = np.mean([distance(*np.array_split(client(c), 2)) for c in large])
    between = np.mean([distance(client(a), client(b)) for a in large for b in large if a < b])
    assert between > 1.5 * within


def test_the_seed_decides():
    again, other = synthetic_text(40, 500, seed=0), synthetic_text(40, 500, seed=1)
    assert all(np.array_equal(ARRAYS[name], again[name]) for name in ARRAYS)
    assert not np.array_equal(ARRAYS["train_counts"], other["train_counts"])


def test_wrong_numbers_are_refused():
    with pytest.raises(ConfigError, match="clients must be a whole number of at least 1"):
        synthetic_text(0, 10, 0)
    with pytest.raises(ConfigError, match="test_samples must be"):
        synthetic_text(1, 0, 0)
