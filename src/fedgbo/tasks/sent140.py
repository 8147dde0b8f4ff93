"""The paper's Sent140: positive or negative tweets by 21,876 users, and a stand-in without files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedgbo.core import DataError
from fedgbo.data.sent140 import FEATURES, sparse_data
from fedgbo.data.store import Array, open_packed
from fedgbo.data.synthetic_text import synthetic_tweets
from fedgbo.models.paper import sent140_linear
from fedgbo.tasks.task import Task

CLIENTS_PER_ROUND = 22


def sent140(*, data: Path | str | None = None) -> Task:
    """Positive and negative tweets by 21,876 users, one client each; needs `fedgbo data`.

    `data` is the folder of the packed data.
    """
    store = open_packed("sent140", data, "sent140-synthetic")
    if store.meta.get("features") != FEATURES:
        raise DataError(f"{store.path} has {store.meta.get('features')} features, the model {FEATURES}; pack it again")
    return _task("sent140", store.arrays, str(store.path), store.digest)


def sent140_synthetic(*, clients: int = 21_876, seed: int = 0, test_samples: int = 80_000) -> Task:
    """Synthetic positive and negative tweets by 21,876 users, in the shape of sent140; needs no files.

    Users differ in their words, in their share of positive tweets and in their number of tweets.
    """
    return _task("sent140-synthetic", synthetic_tweets(clients, test_samples, seed), "sent140-synthetic")


def _task(name: str, arrays: Mapping[str, Array], where: str, digest: str | None = None) -> Task:
    data = replace(sparse_data(arrays, where), content_digest=digest)
    return Task(name, data, sent140_linear, clients_per_round=min(CLIENTS_PER_ROUND, data.clients), batch_size=8)
