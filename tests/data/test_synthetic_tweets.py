import numpy as np

from fedgbo.data.samples import SparseSamples
from fedgbo.data.sent140 import sparse_data
from fedgbo.data.synthetic_text import synthetic_tweets

ARRAYS = synthetic_tweets(800, 2000, seed=0)


def test_shape_is_that_of_the_real_clients():
    data = sparse_data(ARRAYS, "here")
    sizes = np.diff(data.offsets)
    assert data.clients == 800
    assert abs(sizes.mean() - 15) < 1
    assert sizes.min() >= 8
    assert len(data.test) == 2000
    assert ARRAYS["train_indices"].max() < 5000
    assert (np.diff(ARRAYS["train_indptr"]) > 0).all()
    assert data.train.label_range() == (0, 1)


def test_sentiment_can_be_learnt_from_the_words():
    def column_sums(label):
        train = sparse_data(ARRAYS, "here").train
        assert isinstance(train, SparseSamples)
        row = np.repeat(np.arange(len(train)), np.diff(train.indptr))
        mine = train.labels[row] == label
        return np.bincount(train.indices[mine], weights=train.values[mine], minlength=5000) + 0.1

    weight = np.log(column_sums(1)) - np.log(column_sums(0))
    test = sparse_data(ARRAYS, "here").test
    x, y = test.batch(np.arange(2000))
    score = (weight[x[..., 0].long().numpy()] * x[..., 1].numpy()).sum(axis=1)
    assert ((score > 0) == y.numpy()).mean() > 0.7


def test_users_differ_in_mood_and_words():
    labels = np.split(ARRAYS["train_labels"], ARRAYS["train_offsets"][1:-1])
    shares = np.array([mine.mean() for mine in labels])
    assert shares.std() > 0.25  # 0.13 if all had the same share
    row = np.repeat(np.arange(len(ARRAYS["train_labels"])), np.diff(ARRAYS["train_indptr"]))
    owner = np.searchsorted(ARRAYS["train_offsets"], row, side="right") - 1
    topical = ARRAYS["train_indices"] >= 3000
    topic = (4999 - ARRAYS["train_indices"][topical].astype(int)) // 50
    mine = np.zeros((800, 40))
    np.add.at(mine, (owner[topical], topic), 1)
    assert np.median(np.sort(mine, axis=1)[:, -2:].sum(axis=1) / mine.sum(axis=1)) > 0.6


def test_the_seed_decides():
    again, other = synthetic_tweets(800, 2000, seed=0), synthetic_tweets(800, 2000, seed=1)
    assert all(np.array_equal(ARRAYS[name], again[name]) for name in ARRAYS)
    assert not np.array_equal(ARRAYS["train_labels"][:100], other["train_labels"][:100])
