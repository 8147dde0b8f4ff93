"""Made-up text of the shape of Shakespeare's clients, for everything that should run without the real files.

A few styles are Markov chains over the 79 characters. Each client mixes them in its own shares, a stretch of text at a
time, and clients differ in length as the real ones do: log-normally, from 721 windows on.
"""

import numpy as np

from fedgbo.core.checks import whole
from fedgbo.core.random import check_seed, stream
from fedgbo.data.characters import VOCABULARY
from fedgbo.data.store import Array
from fedgbo.data.windows import WINDOW

SYMBOLS = len(VOCABULARY)
STYLES = 6
STRETCH = 128  # characters in one style
MEAN, LEAST, SPREAD = 5573, 721, 1.1  # training windows of a client
LONGEST = 20.0  # times the median of what is above the least
STEPS = 512  # characters that one chain makes; all chains go side by side


def synthetic_text(clients: int, test_samples: int, seed: int, mean: int = MEAN) -> dict[str, Array]:
    """Return the arrays that `read_shakespeare` makes: `mean` training windows a client, `test_samples` in all to test.

    A smaller mean shortens all texts alike.
    """
    whole("clients", clients)
    whole("test_samples", test_samples)
    whole("samples", mean)
    check_seed(seed)
    train = _sizes(clients, mean, stream(seed, "synthetic text sizes"))
    test = np.maximum(1, np.rint(train * (test_samples / train.sum()))).astype(np.int64)
    cut = train + WINDOW - 1  # where the first test window starts
    ends = np.cumsum(cut + test + WINDOW)
    starts = ends - (cut + test + WINDOW)
    return {
        "text": _text(np.diff(ends, prepend=0), stream(seed, "synthetic text")),
        "train_starts": starts,
        "train_counts": train,
        "train_offsets": np.concatenate([[0], np.cumsum(train)]),
        "test_starts": starts + cut,
        "test_counts": test,
        "test_offsets": np.concatenate([[0], np.cumsum(test)]),
    }


def _sizes(clients: int, mean: int, rng: np.random.Generator) -> Array:
    """Draw the numbers of training windows: their mean is `mean`, whatever the draw, the largest 10 times that."""
    least = max(1, LEAST * mean // MEAN)
    extra = np.minimum(rng.lognormal(sigma=SPREAD, size=clients), LONGEST)
    sizes: Array = least + np.rint(extra * (mean - least) / extra.mean()).astype(np.int64)
    return sizes


def _text(lengths: Array, rng: np.random.Generator) -> Array:
    """Write all clients' texts, one after the other."""
    size = int(lengths.sum())
    chains = -(-size // STEPS)
    styles = np.resize(_styles(lengths, rng), (chains, STEPS))  # what goes beyond the texts is cut off again
    chance = rng.integers(256, size=(chains, STEPS), dtype=np.uint8)
    table, text = _table(rng), np.empty((chains, STEPS), dtype=np.uint8)
    now = rng.integers(SYMBOLS, size=chains)
    for step in range(STEPS):
        now = table[styles[:, step], now, chance[:, step]]
        text[:, step] = now
    return text.reshape(-1)[:size]


def _styles(lengths: Array, rng: np.random.Generator) -> Array:
    """Draw the style of each character: constant over a stretch, from the client's own mixture."""
    shares = rng.dirichlet(np.full(STYLES, 0.3), size=len(lengths)).cumsum(axis=1)  # (clients, styles)
    stretches = -(-lengths // STRETCH)
    owner = np.repeat(np.arange(len(lengths)), stretches)
    drawn = (rng.random(len(owner))[:, None] > shares[owner, :-1]).sum(axis=1)
    sizes = np.full(len(owner), STRETCH)
    sizes[np.cumsum(stretches) - 1] = lengths - (stretches - 1) * STRETCH
    return np.repeat(drawn, sizes)


def _table(rng: np.random.Generator) -> Array:
    """Return, by style, character and a random byte, the next character: a third common to all styles."""
    prior = 1.0 / (4.0 + rng.permutation(SYMBOLS))  # some characters are frequent, as in English
    common = rng.dirichlet(1.5 * prior / prior.sum(), size=SYMBOLS)
    own = rng.dirichlet(1.5 * prior / prior.sum(), size=(STYLES, SYMBOLS))
    chances = np.cumsum((common + 2 * own) / 3, axis=-1)
    levels = (np.arange(256) + 0.5) / 256
    table: Array = (chances[..., None, :-1] < levels[:, None]).sum(axis=-1).astype(np.uint8)  # (styles, symbols, 256)
    return table
