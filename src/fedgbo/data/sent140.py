"""Sent140: positive and negative tweets by user, as sparse bags of the most frequent training tokens.

From LEAF's JSON, which is split already, or from Sentiment140's raw CSV (Go et al., 2009).
"""

from pathlib import Path

import numpy as np

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.core.random import check_seed
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.leaf import LeafUser, check_same_users, leaf_files, users
from fedgbo.data.packed import Packed
from fedgbo.data.sent140_csv import draw_training, read_csv
from fedgbo.data.store import Array
from fedgbo.data.tweets import Tweets

FEATURES = 5000
TEXT = 4  # where a LEAF sample has the tweet's text


def read_sent140(source: Path, *, seed: int = 0, features: int = FEATURES) -> Packed:
    """Read the CSV if there is one, else LEAF's JSON; `seed` draws the CSV's split."""
    check_seed(seed)
    whole("features", features)
    if features > 1 << 16:
        raise ConfigError(f"features must be at most {1 << 16}, not {features}")
    table = _table(source)
    if table is not None:
        tweets = read_csv(table)
        train = draw_training(np.array(tweets.owners), seed)
    else:
        tweets, train = _from_leaf(source)
    arrays = tweets.pack(train, features, str(source))
    meta = {"task": "sent140", "source": str(source), "synthetic": False, "features": features}
    return Packed(arrays, meta if table is None else {**meta, "seed": seed})


def _table(source: Path) -> SourceFile | None:
    """Find the CSV; Sentiment140's archive has a small second one for testing, which has other labels."""
    every = source_files(source)
    if len(every) == 1 and not every[0].name.endswith(".json"):
        return every[0]
    files = [file for file in every if file.name.endswith(".csv")]
    training = [file for file in files if "training" in file.name.rsplit("/", 1)[-1]]
    found = training or files
    if len(found) > 1:
        raise DataError(f"{source} has several CSV files: {', '.join(f.name for f in found)}; give the path of one")
    return found[0] if found else None


def _from_leaf(source: Path) -> tuple[Tweets, Array]:
    files, tweets = leaf_files(source, "Sentiment140's CSV"), Tweets()
    train = [_add(tweets, user) for user in users(files.train)]
    size = len(tweets.labels)
    test = [_add(tweets, user) for user in users(files.test)]
    check_same_users(train, test, source)
    return tweets, np.arange(len(tweets.labels)) < size


def _add(tweets: Tweets, user: LeafUser) -> str:
    """Take the user's tweets; return the user's name."""
    for k, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not isinstance(x, list) or len(x) <= TEXT or not isinstance(x[TEXT], str):
            raise DataError(f"{user.where}: sample {k} is not [id, date, query, user, text, ...]")
        if isinstance(y, bool) or y not in (0, 1):
            raise DataError(f"{user.where}: sample {k} has the label {y!r}; Sent140's are 0 and 1")
        tweets.add(user.name, y, x[TEXT])
    return user.name
