"""Sentiment140's raw file: six columns without a header, in a mixture of UTF-8 and latin-1, 1.6 million lines."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.core.random import stream
from fedgbo.data.archives import SourceFile
from fedgbo.data.store import Array
from fedgbo.data.tweets import Tweets

COLUMNS = "polarity, id, date, query, user, text"
POLARITY = {"0": 0, "4": 1}
LEAST_TWEETS = 10
FRACTION = 0.8


class Tweet(NamedTuple):
    """What is needed of a line."""

    user: str
    label: int
    text: str


def read_csv(file: SourceFile) -> Tweets:
    """Read the tweets of users with at least 10 of them, in two passes: count the users' tweets, then take them."""
    counts = Counter(tweet.user for tweet in _tweets(file))
    kept = {user for user, count in counts.items() if count >= LEAST_TWEETS}
    if not kept:
        raise DataError(f"{file.where} has no user with at least {LEAST_TWEETS} tweets; is this the whole file?")
    del counts
    tweets = Tweets()
    for tweet in _tweets(file):
        if tweet.user in kept:
            tweets.add(*tweet)
    return tweets


def draw_training(owners: Array, seed: int) -> Array:
    """Draw 80% of each user's tweets for training, at least one, as LEAF does: t = max(1, int(0.8 n))."""
    train = np.zeros(len(owners), dtype=bool)
    rng = stream(seed, "sent140 split")
    order = np.argsort(owners, kind="stable")
    for mine in np.split(order, np.cumsum(np.bincount(owners))[:-1]):
        kept = 1 if len(mine) == 2 else max(1, int(FRACTION * len(mine)))
        train[rng.permutation(mine)[:kept]] = True
    return train


def _tweets(file: SourceFile) -> Iterator[Tweet]:
    with file.open() as lines:
        last = [b""]
        reader = csv.reader(_decoded(lines, last))
        try:
            for row in reader:
                if len(row) != 6:
                    raise DataError(
                        f"{file.where}, line {reader.line_num}: {len(row)} columns, expected 6 ({COLUMNS}); "
                        "the line was cut short, or this is not Sentiment140's CSV"
                    )
                if row[0] not in POLARITY:
                    raise DataError(
                        f"{file.where}, line {reader.line_num}: the polarity is {row[0][:20]!r}, expected 0 or 4; "
                        f"the file has no header, and its columns are {COLUMNS}"
                    )
                yield Tweet(row[4], POLARITY[row[0]], row[5])
        except csv.Error as error:
            raise DataError(f"{file.where}, line {reader.line_num}: no valid CSV ({error}); get it again") from error
        if reader.line_num == 0:
            raise DataError(f"{file.where} is empty; get it again")
        if last[0].startswith(b'"') and not last[0].rstrip().endswith(b'"'):
            raise DataError(
                f"{file.where} ends in the middle of line {reader.line_num}: it was cut short; get it again"
            )


def _decoded(lines: Iterable[bytes], last: list[bytes]) -> Iterator[str]:
    """Decode line by line; leave the last one in `last`, as a text that is cut off still looks like a text."""
    line = b""
    for line in lines:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            yield line.decode("latin-1")
    last[0] = line
