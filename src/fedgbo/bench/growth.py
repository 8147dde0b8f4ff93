"""How the cost of a round and memory grow with the numbers of clients, local steps, workers and parameters."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from torch import nn

from fedgbo.bench.race import Contender, race
from fedgbo.data.images import image_data
from fedgbo.data.store import Array, Store
from fedgbo.tasks.task import Task

CROWDS = (100, 10_000, 1_000_000)  # clients in the data set
PARAMETERS = (100_000, 1_000_000, 10_000_000, 100_000_000)
COHORTS = (10, 100, 1_000, 10_000)  # clients per round
STEPS = (1, 10, 100, 1_000)  # local steps
HIDDEN = 256  # units of the network on the other axes: 19,210 parameters
SAMPLES, SIDE, CLASSES, TEST = 10, 8, 10, 100  # of the crowd: samples of a client, sizes of images and test set


@dataclass(frozen=True)
class Growth:
    """Milliseconds of a round and peak memory along one axis; cost grows like value^exponent."""

    axis: str
    values: Sequence[int]
    milliseconds: Sequence[float]
    peak_bytes: Sequence[int]
    exponent: float


def growths(seconds: float, repeats: int) -> Iterator[Growth]:
    """Measure each axis; the contenders of one axis take turns."""
    along = partial(_along, seconds=seconds, repeats=repeats)
    with tempfile.TemporaryDirectory(prefix="fedgbo-bench-") as folder:
        for clients in CROWDS:
            write_crowd(Path(folder) / str(clients), clients)

        def of(clients: int = CROWDS[1], hidden: int = HIDDEN) -> Contender:
            return Contender("ours", "crowd", builder=partial(crowd, str(Path(folder) / str(clients)), hidden))

        def sized(parameters: int) -> Contender:
            hidden = round((parameters - CLASSES) / (SIDE * SIDE + 1 + CLASSES))
            return replace(of(hidden=hidden), clients_per_round=2, local_steps=2, workers=1)

        yield along("clients in the data set", CROWDS, of)
        yield along("clients per round", COHORTS, lambda m: replace(of(), clients_per_round=m))
        yield along("local steps", STEPS, lambda k: replace(of(), local_steps=k))
        yield along("parameters", PARAMETERS, sized)


def _along(
    axis: str, values: Sequence[int], contender: Callable[[int], Contender], seconds: float, repeats: int
) -> Growth:
    laps = race([contender(value) for value in values], seconds, repeats)
    times = [median(lap.seconds / lap.rounds for lap in mine) for mine in laps]
    exponent = float(np.polyfit(np.log(values), np.log(times), 1)[0])
    peaks = [mine[-1].peak_bytes - mine[-1].file_bytes for mine in laps]  # the system may take back pages of files
    return Growth(axis, values, [1e3 * t for t in times], peaks, exponent)


def write_crowd(path: Path, clients: int) -> None:
    """Write a packed store of small images of noise for any number of clients."""
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


def crowd(path: str, hidden: int) -> Task:
    """Return the task with the data that `write_crowd` wrote, and a model with one hidden layer."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    data = image_data(Store.open(Path(path)).arrays, path)
    return Task("crowd", data, model, clients_per_round=10, batch_size=10)
