"""Reads and opens Sent140: positive and negative tweets by user, as sparse counts of the most frequent tokens.

From LEAF's JSON, which is already split, or from Sentiment140's raw CSV (Go et al., 2009): six columns without a
header, in a mixture of UTF-8 and latin-1, 1.6 million lines.
"""

import csv
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgbo.core import ConfigError, DataError, check_seed, stream, whole
from fedgbo.data.archives import SourceFile, raw_file
from fedgbo.data.federated import FederatedData
from fedgbo.data.leaf import LeafUser, check_same_users, leaf_files, users
from fedgbo.data.samples import SparseSamples
from fedgbo.data.store import Array, Packed

FEATURES = 5000
TEXT = 4  # position of the tweet's text in a LEAF sample
COLUMNS = "polarity, id, date, query, user, text"
POLARITY = {"0": 0, "4": 1}
LEAST_TWEETS = 10  # of a user in the CSV
FRACTION = 0.8  # of the CSV's tweets for training
ARRAYS = ("indptr", "indices", "counts", "labels")  # of each half in the store


def read_sent140(source: Path, *, seed: int = 0, features: int = FEATURES) -> Packed:
    """Read the CSV if there is one, else LEAF's JSON; `seed` draws the CSV's split."""
    check_seed(seed)
    whole("features", features)
    if features > 1 << 16:
        raise ConfigError(f"features must be at most {1 << 16}, not {features}")
    file = raw_file(source, _tables, "CSV files")
    tweets, train = _from_leaf(source) if file is None else _from_csv(file, seed)
    meta = {"task": "sent140", "source": str(source), "synthetic": False, "features": features}
    return Packed(tweets.pack(train, features, str(source)), meta if file is None else {**meta, "seed": seed})


def packed_half(half: str, samples: SparseSamples, sizes: Array) -> dict[str, Array]:
    """Return the arrays of one half ("train" or "test") for the store; `sizes` are the clients' numbers of samples."""
    arrays: dict[str, Array] = {f"{half}_{name}": getattr(samples, name) for name in ARRAYS}
    return {**arrays, f"{half}_offsets": np.cumsum([0, *sizes], dtype=np.int64)}


def sparse_data(arrays: Mapping[str, Array], where: str) -> FederatedData:
    """Open the arrays of `read_sent140` or of the synthetic data; `where` names them in errors."""
    return FederatedData.from_packed(
        arrays, where, lambda half: SparseSamples(*(arrays[f"{half}_{name}"] for name in ARRAYS))
    )


@dataclass
class Tweets:
    """The tweets read so far, in a few bytes a token."""

    users: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    ids: "array[int]" = field(default_factory=lambda: array("I"))  # of all tokens of all tweets
    lengths: "array[int]" = field(default_factory=lambda: array("I"))  # tokens, by tweet
    owners: "array[int]" = field(default_factory=lambda: array("I"))  # the user's number, by tweet
    labels: bytearray = field(default_factory=bytearray)

    def add(self, user: str, label: int, text: str) -> None:
        known = self.tokens
        ids = [known.setdefault(token, len(known)) for token in text.split(" ") if token]
        self.ids.extend(ids)
        self.lengths.append(len(ids))
        self.owners.append(self.users.setdefault(user, len(self.users)))
        self.labels.append(label)

    def pack(self, train: Array, features: int, where: str) -> dict[str, Array]:
        """Count the `features` most frequent tokens of the training tweets, by user.

        `train` marks the tweets for training. Tweets without a counted token are dropped, as are users who then have
        no training tweet.
        """
        owners, labels = np.frombuffer(self.owners, dtype=np.uintc), np.frombuffer(self.labels, dtype=np.uint8)
        order = np.argsort(owners, kind="stable")  # by user; each user's tweets keep their order
        tweet = np.repeat(np.argsort(order).astype(np.int32), self.lengths)  # by token
        ids = np.frombuffer(self.ids, dtype=np.uintc)
        owners, labels, train = owners[order], labels[order], train[order]
        chosen = self._vocabulary(np.bincount(ids[train[tweet]], minlength=len(self.tokens)), features)
        number = np.full(len(self.tokens), -1, dtype=np.int32)
        number[chosen] = np.arange(len(chosen))
        counted = number[ids] >= 0
        samples = SparseSamples.from_tokens(tweet[counted], number[ids[counted]], labels)
        filled = np.diff(samples.indptr) > 0
        alive = np.bincount(owners[train & filled], minlength=len(self.users)) > 0
        words = list(self.tokens)
        arrays: dict[str, Array] = {"client_names": np.array(list(self.users))[alive]}
        arrays["vocabulary"] = np.array([words[token] for token in chosen], dtype=np.str_)
        for half, mine in (("train", train), ("test", ~train)):
            rows = np.flatnonzero(mine & filled & alive[owners])
            if len(rows) == 0:
                raise DataError(f"{where}: no {half} tweet has one of the {features} most frequent training tokens")
            sizes = np.bincount(owners[rows], minlength=len(self.users))[alive]
            arrays |= packed_half(half, samples.take(rows), sizes)
        return arrays

    def _vocabulary(self, counts: Array, features: int) -> list[int]:
        """Return the numbers of the most frequent tokens; ties are broken alphabetically."""
        least = np.partition(counts, -features)[-features] if len(counts) > features else 1
        words = list(self.tokens)
        candidates = np.flatnonzero(counts >= max(least, 1)).tolist()
        return sorted(candidates, key=lambda token: (-int(counts[token]), words[token]))[:features]


def _from_leaf(source: Path) -> tuple[Tweets, Array]:
    train_files, test_files = leaf_files(source, "Sentiment140's CSV")
    tweets = Tweets()
    train = [_add_user(tweets, user) for user in users(train_files)]
    size = len(tweets.labels)
    check_same_users(train, [_add_user(tweets, user) for user in users(test_files)], source)
    return tweets, np.arange(len(tweets.labels)) < size


def _add_user(tweets: Tweets, user: LeafUser) -> str:
    for k, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not isinstance(x, list) or len(x) <= TEXT or not isinstance(x[TEXT], str):
            raise DataError(f"{user.where}: sample {k} is not [id, date, query, user, text, ...]")
        if isinstance(y, bool) or y not in (0, 1):
            raise DataError(f"{user.where}: sample {k} has the label {y!r}; Sent140's are 0 and 1")
        tweets.add(user.name, y, x[TEXT])
    return user.name


def _tables(files: list[SourceFile]) -> list[SourceFile]:
    """Find the CSV; Sentiment140's archive has a second, small one for testing, with other labels."""
    tables = [file for file in files if file.name.endswith(".csv")]
    return [file for file in tables if "training" in file.name.rsplit("/", 1)[-1]] or tables


def _from_csv(file: SourceFile, seed: int) -> tuple[Tweets, Array]:
    """Read the tweets of users with at least 10 of them, and draw 80% of each user's for training, as LEAF does."""
    counts = Counter(user for user, _, _ in _csv_rows(file))
    kept = {user for user, count in counts.items() if count >= LEAST_TWEETS}
    if not kept:
        raise DataError(f"{file.where} has no user with at least {LEAST_TWEETS} tweets; is this the whole file?")
    del counts
    tweets = Tweets()
    for user, label, text in _csv_rows(file):
        if user in kept:
            tweets.add(user, label, text)
    owners = np.array(tweets.owners)
    train = np.zeros(len(owners), dtype=bool)
    rng = stream(seed, "sent140 split")
    order = np.argsort(owners, kind="stable")
    for mine in np.split(order, np.cumsum(np.bincount(owners))[:-1]):
        train[rng.permutation(mine)[: int(FRACTION * len(mine))]] = True
    return tweets, train


def _csv_rows(file: SourceFile) -> Iterator[tuple[str, int, str]]:
    line = b""

    def decoded(lines: Iterable[bytes]) -> Iterator[str]:
        nonlocal line
        for line in lines:
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                yield line.decode("latin-1")

    with file.open() as lines:
        reader = csv.reader(decoded(lines))
        try:
            for row in reader:
                if len(row) != 6:
                    raise csv.Error(f"{len(row)} columns, expected 6 ({COLUMNS}): cut short, or not Sentiment140's CSV")
                if row[0] not in POLARITY:
                    raise csv.Error(f"the polarity is {row[0][:20]!r}, expected 0 or 4; Sentiment140 has no header")
                yield row[4], POLARITY[row[0]], row[5]
        except csv.Error as error:
            raise DataError(f"{file.where}, line {reader.line_num}: {error}; get it again") from error
        if reader.line_num == 0:
            raise DataError(f"{file.where} is empty; get it again")
        if line.startswith(b'"') and not line.rstrip().endswith(b'"'):  # the CSV reader does not notice
            raise DataError(f"{file.where} ends in the middle of line {reader.line_num}: cut short; get it again")
