"""Synthetic stand-ins for Shakespeare and Sent140, for everything that should run without the real files.

Text: a few styles are Markov chains over the 79 characters. Each client mixes them in its own proportions, one stretch
of text at a time. Clients differ in length as the real ones do: log-normally, with at least 721 windows.

Tweets: tokens have a Zipf distribution. One token in ten carries a sentiment and is more frequent in tweets of its
label. Each user has topics with tokens of their own, and a share of positive tweets of their own.
"""

import numpy as np

from fedgbo.core import check_seed, stream, whole
from fedgbo.data.samples import WINDOW, SparseSamples
from fedgbo.data.sent140 import FEATURES, packed_half
from fedgbo.data.shakespeare import VOCABULARY
from fedgbo.data.store import Array

SYMBOLS = len(VOCABULARY)
STYLES = 6
STRETCH = 128  # characters in one style
MEAN, LEAST, SPREAD = 5573, 721, 1.1  # training windows of a client
LONGEST = 20.0  # times the median, both without the least
CHAIN = 512  # characters that one chain makes; all chains run side by side

LEAST_TWEETS, MEAN_TWEETS = 8, 15  # training tweets of a user
TOKENS = 9  # mean number in a tweet, besides the first
SENTIMENT, TOPIC = 0.25, 0.3  # shares of tokens drawn for the label, and for the user's topics
NOISE = 0.1  # share of tweets with words of the other label
TOPICS, TOPIC_SIZE, TOPICS_PER_USER = 40, 50, 2


def synthetic_text(clients: int, test_samples: int, seed: int, mean: int = MEAN) -> dict[str, Array]:
    """Return arrays like `read_shakespeare`'s: `mean` training windows a client, about `test_samples` for testing.

    A smaller mean shortens all texts by the same factor.
    """
    whole("clients", clients)
    whole("test_samples", test_samples)
    whole("samples", mean)
    check_seed(seed)
    least = max(1, LEAST * mean // MEAN)
    extra = np.minimum(stream(seed, "synthetic text sizes").lognormal(sigma=SPREAD, size=clients), LONGEST)
    train = least + np.rint(extra * (mean - least) / extra.mean()).astype(np.int64)
    test = np.maximum(1, np.rint(train * (test_samples / train.sum()))).astype(np.int64)
    cut = train + WINDOW - 1  # where the first test window starts
    lengths = cut + test + WINDOW
    starts = np.cumsum(lengths) - lengths
    arrays = {"text": _text(lengths, stream(seed, "synthetic text"))}
    for half, first, counts in (("train", starts, train), ("test", starts + cut, test)):
        arrays[f"{half}_starts"], arrays[f"{half}_counts"] = first, counts
        arrays[f"{half}_offsets"] = np.concatenate([[0], np.cumsum(counts)])
    return arrays


def _text(lengths: Array, rng: np.random.Generator) -> Array:
    size = int(lengths.sum())
    chains = -(-size // CHAIN)
    styles = np.resize(_styles(lengths, rng), (chains, CHAIN))  # the surplus is cut off in the end
    chance = rng.integers(256, size=(chains, CHAIN), dtype=np.uint8)
    table, text = _table(rng), np.empty((chains, CHAIN), dtype=np.uint8)
    now = rng.integers(SYMBOLS, size=chains)
    for k in range(CHAIN):
        now = table[styles[:, k], now, chance[:, k]]
        text[:, k] = now
    return text.reshape(-1)[:size]


def _styles(lengths: Array, rng: np.random.Generator) -> Array:
    """Draw the style of each character from its client's mixture; it is constant over a stretch."""
    shares = rng.dirichlet(np.full(STYLES, 0.3), size=len(lengths)).cumsum(axis=1)  # (clients, styles)
    stretches = -(-lengths // STRETCH)
    owner = np.repeat(np.arange(len(lengths)), stretches)
    drawn = (rng.random(len(owner))[:, None] > shares[owner, :-1]).sum(axis=1)
    sizes = np.full(len(owner), STRETCH)
    sizes[np.cumsum(stretches) - 1] = lengths - (stretches - 1) * STRETCH
    return np.repeat(drawn, sizes)


def _table(rng: np.random.Generator) -> Array:
    """Return the next character by style, character and random byte, (styles, 79, 256); a third is common to all."""
    prior = 1.0 / (4.0 + rng.permutation(SYMBOLS))  # some characters are frequent, as in English
    common = rng.dirichlet(1.5 * prior / prior.sum(), size=SYMBOLS)
    own = rng.dirichlet(1.5 * prior / prior.sum(), size=(STYLES, SYMBOLS))
    chances = np.cumsum((common + 2 * own) / 3, axis=-1)
    levels = (np.arange(256) + 0.5) / 256
    return np.asarray((chances[..., None, :-1] < levels[:, None]).sum(axis=-1).astype(np.uint8))


def synthetic_tweets(clients: int, test_samples: int, seed: int) -> dict[str, Array]:
    """Return arrays like `read_sent140`'s, with `test_samples` test tweets spread over the users."""
    whole("clients", clients)
    whole("test_samples", test_samples)
    check_seed(seed)
    rng = stream(seed, "synthetic tweets")
    positive = rng.beta(2, 2, size=clients)  # each user's share of positive tweets
    topics = rng.integers(TOPICS, size=(clients, TOPICS_PER_USER))
    train = LEAST_TWEETS + rng.geometric(1 / (MEAN_TWEETS - LEAST_TWEETS + 1), size=clients) - 1
    test = np.diff(np.arange(clients + 1) * test_samples // clients)
    arrays: dict[str, Array] = {}
    for half, sizes in (("train", train), ("test", test)):
        arrays |= packed_half(half, _tweets(sizes, positive, topics, rng), sizes)
    return arrays


def _tweets(sizes: Array, positive: Array, topics: Array, rng: np.random.Generator) -> SparseSamples:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = rng.random(len(owner)) < positive[owner]
    mood = labels ^ (rng.random(len(owner)) < NOISE)
    tweet = np.repeat(np.arange(len(owner)), 1 + rng.poisson(TOKENS, size=len(owner)))  # by token
    features = _zipf(FEATURES, len(tweet), rng)
    kind = rng.random(len(tweet))
    bears, topical = kind < SENTIMENT, (kind >= SENTIMENT) & (kind < SENTIMENT + TOPIC)
    features[bears] = 20 * _zipf(FEATURES // 20, int(bears.sum()), rng) + 10 * mood[tweet[bears]]
    mine = topics[owner[tweet[topical]], rng.integers(TOPICS_PER_USER, size=int(topical.sum()))]
    features[topical] = FEATURES - 1 - TOPIC_SIZE * mine - _zipf(TOPIC_SIZE, len(mine), rng)
    return SparseSamples.from_tokens(tweet, features, labels.astype(np.uint8))


def _zipf(size: int, count: int, rng: np.random.Generator) -> Array:
    """Draw numbers below `size`, number k with a probability proportional to 1 / (k + 3)."""
    chances = np.cumsum(1 / (np.arange(size) + 3.0))
    return np.asarray(np.searchsorted(chances, rng.random(count) * chances[-1], side="right"))
