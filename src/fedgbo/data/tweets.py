"""Tweets as tokens, gathered one by one, then made into bags of the most frequent training tokens."""

from array import array
from dataclasses import dataclass, field

import numpy as np

from fedgbo.core.errors import DataError
from fedgbo.data.bags import count_tokens
from fedgbo.data.store import Array


@dataclass
class Tweets:
    """What has been read so far: a few bytes a token, whatever the size of the files."""

    users: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    ids: "array[int]" = field(default_factory=lambda: array("I"))  # of all tokens of all tweets
    lengths: "array[int]" = field(default_factory=lambda: array("I"))  # tokens, by tweet
    owners: "array[int]" = field(default_factory=lambda: array("I"))  # the user's number, by tweet
    labels: bytearray = field(default_factory=bytearray)

    def add(self, user: str, label: int, text: str) -> None:
        """Take one tweet, split on spaces."""
        known = self.tokens
        ids = [known.setdefault(token, len(known)) for token in text.split(" ") if token]
        self.ids.extend(ids)
        self.lengths.append(len(ids))
        self.owners.append(self.users.setdefault(user, len(self.users)))
        self.labels.append(label)

    def pack(self, train: Array, features: int, where: str) -> dict[str, Array]:
        """Count the `features` most frequent tokens of the training tweets, by user.

        `train` says which tweets are for training. Tweets without a counted token are left out, and users whom that
        leaves without a training tweet.
        """
        owners, labels = np.frombuffer(self.owners, dtype=np.uintc), np.frombuffer(self.labels, dtype=np.uint8)
        order = np.argsort(owners, kind="stable")  # by user, as read inside a user
        tweet = np.repeat(np.argsort(order).astype(np.int32), self.lengths)  # by token
        ids = np.frombuffer(self.ids, dtype=np.uintc)
        owners, labels, train = owners[order], labels[order], train[order]
        chosen = self._vocabulary(np.bincount(ids[train[tweet]], minlength=len(self.tokens)), features)
        number = np.full(len(self.tokens), -1, dtype=np.int32)
        number[chosen] = np.arange(len(chosen))
        counted = number[ids] >= 0
        bags = count_tokens(tweet[counted], number[ids[counted]], len(owners))
        filled = np.diff(bags.indptr) > 0
        alive = np.bincount(owners[train & filled], minlength=len(self.users)) > 0
        words = list(self.tokens)
        arrays = {
            "client_names": np.array(list(self.users))[alive],
            "vocabulary": np.array([words[token] for token in chosen], dtype=np.str_),
        }
        for half, mine in (("train", train), ("test", ~train)):
            rows = np.flatnonzero(mine & filled & alive[owners])
            if len(rows) == 0:
                raise DataError(f"{where}: no {half} tweet has one of the {features} most frequent training tokens")
            bag = bags.take(rows)
            sizes = np.bincount(owners[rows], minlength=len(self.users))[alive]
            arrays[f"{half}_indptr"], arrays[f"{half}_indices"] = bag.indptr, bag.indices
            arrays[f"{half}_counts"], arrays[f"{half}_labels"] = bag.counts, labels[rows]
            arrays[f"{half}_offsets"] = np.cumsum([0, *sizes], dtype=np.int64)
        return arrays

    def _vocabulary(self, counts: Array, features: int) -> list[int]:
        """Return the most frequent tokens' numbers, the first in the alphabet where counts are equal."""
        least = np.partition(counts, -features)[-features] if len(counts) > features else 1
        words = list(self.tokens)
        candidates = np.flatnonzero(counts >= max(least, 1)).tolist()
        return sorted(candidates, key=lambda token: (-int(counts[token]), words[token]))[:features]
