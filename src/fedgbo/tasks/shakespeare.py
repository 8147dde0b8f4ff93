"""The paper's Shakespeare: the next of 79 characters, by 660 speakers, and a stand-in without files.

How much of a speaker's text is for training is decided when the data are packed: 0.9, or 0.8 with its 799 speakers.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedgbo.data.shakespeare import window_data
from fedgbo.data.store import Array, open_packed
from fedgbo.data.synthetic_text import MEAN, synthetic_text
from fedgbo.models.paper import shakespeare_gru
from fedgbo.tasks.task import Task

CLIENTS_PER_ROUND = 7


def shakespeare(*, data: Path | str | None = None) -> Task:
    """The next of 79 characters in the lines of 660 speakers, one client each; needs `fedgbo data`.

    `data` is the folder of the packed data.
    """
    store = open_packed("shakespeare", data, "shakespeare-synthetic")
    return _task("shakespeare", store.arrays, str(store.path), store.digest)


def shakespeare_synthetic(
    *, clients: int = 660, seed: int = 0, test_samples: int = 10_000, samples: int = MEAN
) -> Task:
    """Synthetic text by 660 clients, in the shape of shakespeare; needs no files.

    Clients differ in style and length as the speakers do, with `samples` each on average.
    """
    arrays = synthetic_text(clients, test_samples, seed, samples)
    return _task("shakespeare-synthetic", arrays, "shakespeare-synthetic")


def _task(name: str, arrays: Mapping[str, Array], where: str, digest: str | None = None) -> Task:
    data = replace(window_data(arrays, where), content_digest=digest)
    return Task(name, data, shakespeare_gru, clients_per_round=min(CLIENTS_PER_ROUND, data.clients), batch_size=32)
