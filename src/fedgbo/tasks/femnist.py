"""The paper's FEMNIST: handwritten digits and letters of 62 classes by 3,000 writers, and a stand-in without files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedgbo.core import whole
from fedgbo.data.images import image_data
from fedgbo.data.store import open_packed
from fedgbo.data.synthetic_images import synthetic_glyphs
from fedgbo.models.paper import paper_cnn
from fedgbo.tasks.task import Task

CLIENTS_PER_ROUND = 30


def femnist(*, data: Path | str | None = None, clients: int = 3000) -> Task:
    """Handwritten digits and letters in 62 classes by 3,000 writers, one client each; needs `fedgbo data`.

    `data` is the folder of the packed data. Its first `clients` writers are used, or all if it has fewer.
    """
    whole("clients", clients)
    store = open_packed("femnist", data, "femnist-synthetic")
    return _task("femnist", store.arrays, str(store.path), clients, store.digest)


def femnist_synthetic(*, clients: int = 3000, seed: int = 0, test_samples: int = 10_000) -> Task:
    """Synthetic characters in 62 classes by 3,000 writers, in the shape of femnist; needs no files.

    Writers differ in style, in their classes and in their number of characters.
    """
    arrays = synthetic_glyphs(clients, test_samples, seed)
    return _task("femnist-synthetic", arrays, "femnist-synthetic", clients)


def _task(name: str, arrays: Mapping[str, Any], where: str, clients: int, digest: str | None = None) -> Task:
    data = replace(image_data(arrays, where, invert=True, clients=clients), content_digest=digest)
    return Task(name, data, _model, clients_per_round=min(CLIENTS_PER_ROUND, data.clients), batch_size=32)


def _model() -> nn.Module:
    return paper_cnn(channels=1, size=28, classes=62)
