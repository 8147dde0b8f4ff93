"""A task with as many clients as one likes, on disk: to see what more of them cost."""

from pathlib import Path

import numpy as np
from torch import nn

from fedgbo.data.images import image_data
from fedgbo.data.store import Array, Store
from fedgbo.tasks.task import Task

SAMPLES, SIDE, CLASSES, TEST = 10, 8, 10, 100


def write_crowd(path: Path, clients: int) -> None:
    """Write a packed store of small images of noise, a few for each client."""
    random = np.random.default_rng(0)
    count = clients * SAMPLES
    images = random.integers(256, size=(count + TEST, 1, SIDE, SIDE), dtype=np.uint8)
    labels = random.integers(CLASSES, size=count + TEST, dtype=np.uint8)
    arrays: dict[str, Array] = {
        "train_images": images[:count],
        "train_labels": labels[:count],
        "train_offsets": np.arange(0, count + 1, SAMPLES, dtype=np.int64),
        "test_images": images[count:],
        "test_labels": labels[count:],
    }
    Store.write(path, arrays, {"task": "crowd", "synthetic": True})


def crowd(*, path: str, hidden: int = 256) -> Task:
    """Open a store that `write_crowd` wrote; the model has one hidden layer."""
    store = Store.open(Path(path))

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    return Task("crowd", image_data(store.arrays, path), model, clients_per_round=10, batch_size=10)
