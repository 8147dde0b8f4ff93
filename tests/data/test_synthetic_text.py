import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.samples import SparseSamples
from fedgbo.data.sent140 import sparse_data
from fedgbo.data.shakespeare import window_data
from fedgbo.data.synthetic_text import synthetic_text, synthetic_tweets

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


TWEETS = synthetic_tweets(800, 2000, seed=0)


def test_shape_is_that_of_the_real_users():
    data = sparse_data(TWEETS, "here")
    sizes = np.diff(data.offsets)
    assert data.clients == 800
    assert abs(sizes.mean() - 15) < 1
    assert sizes.min() >= 8
    assert len(data.test) == 2000
    assert TWEETS["train_indices"].max() < 5000
    assert (np.diff(TWEETS["train_indptr"]) > 0).all()
    assert data.train.label_range() == (0, 1)


def test_sentiment_can_be_learnt_from_the_words():
    def column_sums(label):
        train = sparse_data(TWEETS, "here").train
        assert isinstance(train, SparseSamples)
        row = np.repeat(np.arange(len(train)), np.diff(train.indptr))
        mine = train.labels[row] == label
        return np.bincount(train.indices[mine], weights=train.values[mine], minlength=5000) + 0.1

    weight = np.log(column_sums(1)) - np.log(column_sums(0))
    test = sparse_data(TWEETS, "here").test
    x, y = test.batch(np.arange(2000))
    score = (weight[x[..., 0].long().numpy()] * x[..., 1].numpy()).sum(axis=1)
    assert ((score > 0) == y.numpy()).mean() > 0.7


def test_users_differ_in_mood_and_words():
    labels = np.split(TWEETS["train_labels"], TWEETS["train_offsets"][1:-1])
    shares = np.array([mine.mean() for mine in labels])
    assert shares.std() > 0.25  # 0.13 if all had the same share
    row = np.repeat(np.arange(len(TWEETS["train_labels"])), np.diff(TWEETS["train_indptr"]))
    owner = np.searchsorted(TWEETS["train_offsets"], row, side="right") - 1
    topical = TWEETS["train_indices"] >= 3000
    topic = (4999 - TWEETS["train_indices"][topical].astype(int)) // 50
    mine = np.zeros((800, 40))
    np.add.at(mine, (owner[topical], topic), 1)
    assert np.median(np.sort(mine, axis=1)[:, -2:].sum(axis=1) / mine.sum(axis=1)) > 0.6


def test_the_seed_decides_about_tweets():
    again, other = synthetic_tweets(800, 2000, seed=0), synthetic_tweets(800, 2000, seed=1)
    assert all(np.array_equal(TWEETS[name], again[name]) for name in TWEETS)
    assert not np.array_equal(TWEETS["train_labels"][:100], other["train_labels"][:100])


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
