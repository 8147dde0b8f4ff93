"""Made-up tweets of the shape of Sent140's clients, for everything that should run without the real files.

Tokens are Zipf distributed. One in ten bears a sentiment and comes more often in tweets of its own label. Each user has
topics, which bring tokens of their own, and a share of positive tweets of their own.
"""

import numpy as np

from fedgbo.core.checks import whole
from fedgbo.core.random import check_seed, stream
from fedgbo.data.bags import count_tokens
from fedgbo.data.store import Array

FEATURES = 5000
LEAST, MEAN = 8, 15  # training tweets of a user
TOKENS = 9  # mean number in a tweet, besides the first
SENTIMENT, TOPIC = 0.25, 0.3  # shares of tokens drawn for the label, and for the user's topics
NOISE = 0.1  # share of tweets whose words belong to the other label
TOPICS, TOPIC_SIZE, TOPICS_PER_USER = 40, 50, 2


def synthetic_tweets(clients: int, test_samples: int, seed: int) -> dict[str, Array]:
    """Return the arrays that `read_sent140` makes, with `test_samples` test tweets spread over the users."""
    whole("clients", clients)
    whole("test_samples", test_samples)
    check_seed(seed)
    rng = stream(seed, "synthetic tweets")
    users = _Users(clients, rng)
    train = LEAST + rng.geometric(1 / (MEAN - LEAST + 1), size=clients) - 1
    test = np.diff(np.arange(clients + 1) * test_samples // clients)
    return {**_half("train", train, users, rng), **_half("test", test, users, rng)}


class _Users:
    """What users differ in."""

    def __init__(self, clients: int, rng: np.random.Generator) -> None:
        self.positive = rng.beta(2, 2, size=clients)  # share of positive tweets
        self.topics = rng.integers(TOPICS, size=(clients, TOPICS_PER_USER))


def _half(half: str, sizes: Array, users: _Users, rng: np.random.Generator) -> dict[str, Array]:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = rng.random(len(owner)) < users.positive[owner]
    mood = labels ^ (rng.random(len(owner)) < NOISE)
    tweet = np.repeat(np.arange(len(owner)), 1 + rng.poisson(TOKENS, size=len(owner)))  # by token
    features = _zipf(FEATURES, len(tweet), rng)
    kind = rng.random(len(tweet))
    bears, topical = kind < SENTIMENT, (kind >= SENTIMENT) & (kind < SENTIMENT + TOPIC)
    features[bears] = 20 * _zipf(FEATURES // 20, int(bears.sum()), rng) + 10 * mood[tweet[bears]]
    mine = users.topics[owner[tweet[topical]], rng.integers(TOPICS_PER_USER, size=int(topical.sum()))]
    features[topical] = FEATURES - 1 - TOPIC_SIZE * mine - _zipf(TOPIC_SIZE, len(mine), rng)
    bags = count_tokens(tweet, features, len(owner))
    return {
        f"{half}_indptr": bags.indptr,
        f"{half}_indices": bags.indices,
        f"{half}_counts": bags.counts,
        f"{half}_labels": labels.astype(np.uint8),
        f"{half}_offsets": np.concatenate([[0], np.cumsum(sizes)]),
    }


def _zipf(size: int, count: int, rng: np.random.Generator) -> Array:
    """Draw numbers below `size`, number k with probability in proportion to 1 / (k + 3)."""
    chances = np.cumsum(1 / (np.arange(size) + 3.0))
    drawn: Array = np.searchsorted(chances, rng.random(count) * chances[-1], side="right")
    return drawn
