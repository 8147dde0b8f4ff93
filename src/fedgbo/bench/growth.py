"""How the cost of a round, and memory, grow with what a user may have more of."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from fedgbo.bench.contender import Contender, Lap
from fedgbo.bench.crowd import write_crowd
from fedgbo.bench.race import race

CROWDS = (10, 1_000, 100_000)  # clients in the data set
WIDTHS = (256, 1_024, 4_096)  # of a hidden layer: 19,210 to 307,210 parameters
COHORTS = (4, 8, 16, 32)
STEPS = (5, 10, 20, 40)


@dataclass(frozen=True)
class Growth:
    """Milliseconds of a round and peak memory along one axis; cost grows like value^exponent."""

    axis: str
    values: Sequence[int]
    milliseconds: Sequence[float]
    peak_bytes: Sequence[int]
    exponent: float


def growths(seconds: float, repeats: int) -> Iterator[Growth]:
    """Measure each axis; contenders of one axis take turns."""
    femnist = "femnist-synthetic"
    yield _along(
        "clients per round", COHORTS, lambda m: Contender("ours", femnist, clients_per_round=m), seconds, repeats
    )
    yield _along(
        "local steps",
        STEPS,
        lambda k: Contender("ours", femnist, local_steps=k, clients_per_round=4),
        seconds,
        repeats,
    )
    yield _along(
        "workers",
        (1, 2),
        lambda w: Contender("ours", femnist, clients_per_round=8, workers=w),
        seconds,
        repeats,
    )
    with tempfile.TemporaryDirectory(prefix="fedgbo-bench-") as folder:
        for clients in CROWDS:
            write_crowd(Path(folder) / str(clients), clients)

        def crowd(clients: int, hidden: int = WIDTHS[0]) -> Contender:
            options = {"path": str(Path(folder) / str(clients)), "hidden": hidden}
            return Contender("ours", "crowd", options=options)

        yield _along("clients in the data set", CROWDS, crowd, seconds, repeats)
        yield _along("width of a hidden layer", WIDTHS, lambda width: crowd(CROWDS[1], width), seconds, repeats)


def _along(
    axis: str, values: Sequence[int], contender: Callable[[int], Contender], seconds: float, repeats: int
) -> Growth:
    laps = race([contender(value) for value in values], seconds, repeats)
    times = [median(lap.seconds / lap.rounds for lap in mine) for mine in laps]
    exponent = float(np.polyfit(np.log(values), np.log(times), 1)[0])
    return Growth(axis, values, [1e3 * t for t in times], [_own(mine[-1]) for mine in laps], exponent)


def _own(lap: Lap) -> int:
    """The peak without the pages of data files, which are the system's to take back."""
    return lap.peak_bytes - lap.file_bytes
