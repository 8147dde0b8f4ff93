"""Reads and opens Sent140: positive and negative tweets by user, as sparse counts of the most frequent tokens.

From LEAF's JSON, which is already split, or from Sentiment140's raw CSV (Go et al., 2009): six columns, in a mixture of
UTF-8 and latin-1, 1.6 million lines. The public file has no header; copies of it may have one, or a byte order mark.
"""

import codecs
import csv
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgbo.core import ConfigError, DataError, check_seed, stream, whole
from fedgbo.data.archives import SourceFile, only_file, source_files
from fedgbo.data.federated import FederatedData
from fedgbo.data.leaf import LeafUser, is_leaf, leaf_files, users
from fedgbo.data.public import EVERY_CLIENT, ClientRules, Kept, choose_clients, pick_format
from fedgbo.data.samples import SparseSamples
from fedgbo.data.store import Array, Packed

FEATURES = 5000
TEXT = 4  # position of the tweet's text in a LEAF sample
COLUMNS = "polarity, id, date, query, user, text"
POLARITY = {"0": 0, "4": 1}
HEADINGS = ("polarity", "target", "sentiment", "label")  # that the first column may have
FORMATS = {"csv": "Sentiment140's CSV", "leaf": "LEAF's JSON, train and test files"}
LEAST_TWEETS = 10  # of a user in the CSV, unless the rules have another number
FRACTION = 0.8  # of the CSV's tweets, or of its users, for training
ARRAYS = ("indptr", "indices", "counts", "labels")  # of each half in the store


def read_sent140(
    source: Path,
    *,
    format: str | None = None,
    rules: ClientRules = EVERY_CLIENT,
    seed: int = 0,
    features: int = FEATURES,
) -> Packed:
    """Read the users that the rules keep; `seed` draws the CSV's split."""
    check_seed(seed)
    whole("features", features)
    if features > 1 << 16:
        raise ConfigError(f"features must be at most {1 << 16}, not {features}")
    files = source_files(source)
    tables = _tables(files)
    present = ["csv"] * bool(tables) + ["leaf"] * any(map(is_leaf, files))
    format = pick_format(source, (file.name for file in files), FORMATS, present, format)
    meta = {"task": "sent140", "source": str(source), "synthetic": False, "features": features, "format": format}
    if format == "csv":
        tweets, train, notes = _from_csv(only_file(source, tables, "CSV files"), seed, rules)
        meta["seed"] = seed
        rules = replace(rules, min_samples=None, drop_incomplete=True)  # a user's only tweet is for training
    else:
        tweets, train, notes = *_from_leaf(source), []
    kept = choose_clients(tweets.sizes(train), tweets.sizes(~train), rules, source)
    arrays, lost = tweets.pack(train, kept, features, str(source))
    return Packed(arrays, meta, (*notes, *kept.notes, *lost))


def packed_half(half: str, samples: SparseSamples, sizes: Array) -> dict[str, Array]:
    """Return the arrays of one half ("train" or "test") for the store; `sizes` are the clients' numbers of samples."""
    arrays: dict[str, Array] = {f"{half}_{name}": getattr(samples, name) for name in ARRAYS}
    return {**arrays, f"{half}_offsets": np.cumsum([0, *sizes], dtype=np.int64)}


def sparse_data(arrays: Mapping[str, Array], where: str) -> FederatedData:
    """Open the arrays of `read_sent140` or of the synthetic data; `where` names them in errors."""

    def samples(half: str) -> SparseSamples:
        indptr, indices, counts, labels = (arrays[f"{half}_{name}"] for name in ARRAYS)
        kinds = [array.dtype.str[1:] for array in (indptr, indices, counts, labels)]
        if kinds != ["i8", "u2", "u1", "u1"] or any(array.ndim != 1 for array in (indptr, indices, counts, labels)):
            raise DataError(f"{where}: the {half} tweets are not in the store's types; pack the data again")
        rising = len(indptr) > 0 and indptr[0] == 0 and (np.diff(indptr) >= 0).all()
        if not rising or np.max(indices, initial=0) >= FEATURES:  # native code trusts these numbers
            raise DataError(f"{where}: the {half} tweets have rows or features out of range; pack the data again")
        return SparseSamples(indptr, indices, counts, labels)

    return FederatedData.from_packed(arrays, where, samples)


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

    def sizes(self, tweets: Array) -> dict[str, int]:
        """Return each user's number of the marked tweets."""
        owners = np.frombuffer(self.owners, dtype=np.uintc)[tweets]
        return dict(zip(self.users, np.bincount(owners, minlength=len(self.users)).tolist(), strict=True))

    def pack(self, train: Array, kept: Kept, features: int, where: str) -> tuple[dict[str, Array], list[str]]:
        """Count the `features` most frequent tokens of the training tweets, by user; also return what was left out.

        `train` marks the tweets for training. A training tweet without a counted token teaches nothing and is left
        out, as is a user without any other. A test tweet without one stays: the model has to judge it, too.
        """
        owners, labels = np.frombuffer(self.owners, dtype=np.uintc), np.frombuffer(self.labels, dtype=np.uint8)
        order = np.argsort(owners, kind="stable")  # by user; each user's tweets keep their order
        tweet = np.repeat(np.argsort(order).astype(np.int32), self.lengths)  # by token
        ids = np.frombuffer(self.ids, dtype=np.uintc)
        owners, labels = owners[order], labels[order]
        test = ~train[order] & self._among(kept.test)[owners]
        train = train[order] & self._among(kept.train)[owners]
        chosen = self._vocabulary(np.bincount(ids[train[tweet]], minlength=len(self.tokens)), features)
        number = np.full(len(self.tokens), -1, dtype=np.int32)
        number[chosen] = np.arange(len(chosen))
        counted = number[ids] >= 0
        samples = SparseSamples.from_tokens(tweet[counted], number[ids[counted]], labels)
        filled = np.diff(samples.indptr) > 0
        alive = np.bincount(owners[train & filled], minlength=len(self.users)) > 0
        notes = [_left_out(train & ~filled, self._among(kept.train) & ~alive)]
        if kept.test == kept.train:
            test &= alive[owners]
        notes += [f"kept: {n:,} test tweets without a known word"] if (n := int((test & ~filled).sum())) else []
        words = list(self.tokens)
        arrays: dict[str, Array] = {"client_names": np.array(list(self.users))[alive]}
        arrays["vocabulary"] = np.array([words[token] for token in chosen], dtype=np.str_)
        for half, mine in (("train", train & filled), ("test", test)):
            rows = np.flatnonzero(mine)
            if not filled[rows].any():
                raise DataError(f"{where}: no {half} tweet has one of the {features} most frequent training tokens")
            sizes = np.bincount(owners[rows], minlength=len(self.users))
            arrays |= packed_half(half, samples.take(rows), sizes[sizes > 0 if half == "test" else alive])
        return arrays, [note for note in notes if note]

    def _among(self, names: Iterable[str]) -> Array:
        chosen = set(names)
        return np.array([name in chosen for name in self.users])

    def _vocabulary(self, counts: Array, features: int) -> list[int]:
        """Return the numbers of the most frequent tokens; ties are broken alphabetically."""
        least = np.partition(counts, -features)[-features] if len(counts) > features else 1
        words = list(self.tokens)
        candidates = np.flatnonzero(counts >= max(least, 1)).tolist()
        return sorted(candidates, key=lambda token: (-int(counts[token]), words[token]))[:features]


def _left_out(tweets: Array, users: Array) -> str:
    if not tweets.any():
        return ""
    also = f", and so {users.sum():,} users" if users.any() else ""
    return f"left out: {tweets.sum():,} training tweets without a known word{also}"


def _from_leaf(source: Path) -> tuple[Tweets, Array]:
    train_files, test_files = leaf_files(source)
    tweets = Tweets()
    for user in users(train_files):
        _add_user(tweets, user)
    size = len(tweets.labels)
    for user in users(test_files):
        _add_user(tweets, user)
    return tweets, np.arange(len(tweets.labels)) < size


def _add_user(tweets: Tweets, user: LeafUser) -> None:
    tweets.users.setdefault(user.name, len(tweets.users))  # also one without tweets
    for k, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not isinstance(x, list) or len(x) <= TEXT or not isinstance(x[TEXT], str):
            raise DataError(f"{user.where}: sample {k} is not [id, date, query, user, text, ...]")
        if isinstance(y, bool) or y not in (0, 1):
            raise DataError(f"{user.where}: sample {k} has the label {y!r}; Sent140's are 0 and 1")
        tweets.add(user.name, y, x[TEXT])


def _tables(files: list[SourceFile]) -> list[SourceFile]:
    """Find the CSV; Sentiment140's archive has a second, small one for testing, with other labels."""
    if len(files) == 1 and not files[0].name.endswith(".json"):
        return files
    tables = [file for file in files if file.name.endswith(".csv")]
    return [file for file in tables if "training" in file.name.rsplit("/", 1)[-1]] or tables


def _from_csv(file: SourceFile, seed: int, rules: ClientRules) -> tuple[Tweets, Array, list[str]]:
    """Read the tweets of users with enough of them, and draw 80% for training: of each user's, or of the users."""
    least = LEAST_TWEETS if rules.min_samples is None else rules.min_samples
    counts = Counter(user for user, _, _ in _csv_rows(file))
    kept = {user for user, count in counts.items() if count >= least}
    if not kept:
        raise DataError(f"{file.where} has no user with at least {least} tweets; is this the whole file?")
    lost = sum(count for count in counts.values() if count < least)
    tweets = Tweets()
    for user, label, text in _csv_rows(file):
        if user in kept:
            tweets.add(user, label, text)
    few = f"left out: {len(counts) - len(kept):,} users with fewer than {least} tweets ({lost:,} tweets)"
    owners = np.array(tweets.owners)
    rng = stream(seed, "sent140 split")
    if rules.by_user:
        chosen = rng.permutation(len(kept))[: max(1, int(FRACTION * len(kept)))]
        return tweets, np.isin(owners, chosen), [few] if lost else []
    train = np.zeros(len(owners), dtype=bool)
    order = np.argsort(owners, kind="stable")
    for mine in np.split(order, np.cumsum(np.bincount(owners))[:-1]):
        train[rng.permutation(mine)[: max(1, int(FRACTION * len(mine)))]] = True
    return tweets, train, [few] if lost else []


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
        if (start := lines.read(3)) != codecs.BOM_UTF8:
            lines.seek(0)
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{file.where} is in UTF-16; convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8")
        reader = csv.reader(decoded(lines))
        try:
            for row in reader:
                if not row:  # a blank line
                    continue
                if reader.line_num == 1 and row and row[0].strip().lower() in HEADINGS:
                    continue
                if len(row) != 6:
                    raise csv.Error(f"{len(row)} columns, expected 6 ({COLUMNS}): cut short, or not Sentiment140's CSV")
                if row[0] not in POLARITY:
                    raise csv.Error(f"the polarity is {row[0][:20]!r}, expected 0 or 4")
                yield row[4], POLARITY[row[0]], row[5]
        except csv.Error as error:
            raise DataError(f"{file.where}, line {reader.line_num}: {error}; get it again") from error
        if reader.line_num == 0:
            raise DataError(f"{file.where} is empty; get it again")
        if line.startswith(b'"') and not line.rstrip().endswith(b'"'):  # the CSV reader does not notice
            raise DataError(f"{file.where} ends in the middle of line {reader.line_num}: cut short; get it again")
