"""The parts of a round between clients and server: who takes part, what happens to uploads, how they are combined."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgbo.core.state import State
from fedgbo.core.upload import Mean, Upload


def _one(client: int, other: int) -> int:
    return 1


@dataclass(frozen=True, eq=False)
class Workload:
    """What a run asks of its clients, for samplers on a virtual clock. By default one local step on one sample."""

    clients: int
    seed: int = 0  # of the run
    steps: Callable[[int, int], int] = _one  # K of a client in a round
    samples: Callable[[int, int], int] = _one  # sample gradients of a client's round with so many local steps
    nbytes: Callable[[], int] = int  # that a client downloads and uploads in a round


class Sampler(ABC):
    """Chooses the cohort of a round. It is a pure function without memory, so that a run can be resumed."""

    @abstractmethod
    def sample(self, clients: int, t: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the cohort of round t, of clients 0 ... clients - 1, in ascending order.

        The cohort may be empty; the round then changes nothing. `rng` is a random stream for this round.
        """

    def steps(self, cohort: Sequence[int], asked: Sequence[int]) -> Sequence[int]:
        """Return the number of local steps of each client of the cohort, given the requested numbers."""
        return asked

    def staleness(self, clients: int, t: int) -> Sequence[int]:
        """Return how many rounds ago each client of round t's cohort downloaded its model; empty: none is late."""
        return ()

    def for_run(self, work: Workload) -> "Sampler":
        """Return the sampler for a run with this work: by default the same."""
        return self

    def elapsed(self, t: int) -> float | None:
        """Return the seconds on a virtual clock until the end of round t, 0 for -1; None: there is no such clock."""
        return None

    def source(self) -> str | None:
        """Return a digest of what the sampler reads from files, so that a run is not resumed with others."""
        return None


class Transform(ABC):  # noqa: B024 - a transform overrides one method or both
    """Changes uploads before they are combined: clipping, compression, noise. A pair of pure functions.

    `rng` is a separate random stream for every transform, round and client.
    """

    def encode(self, upload: Upload, rng: np.random.Generator) -> Upload:
        """Return the upload that the client sends, made with `dataclasses.replace`. `nbytes` is its size in bytes."""
        return upload

    def decode(self, mean: Mean, rng: np.random.Generator) -> Mean:
        """Return the state that the server uses in place of the combined uploads."""
        return mean


class Aggregator(ABC):
    """Combines a round's uploads into one state: a pure function whose result does not depend on their order."""

    @abstractmethod
    def combine(self, uploads: Iterable[Upload]) -> State:
        """Return the combined model difference and statistics.

        Uploads have the same vectors, are in ascending order of clients, and can be iterated once.
        """

    def weight(self, upload: Upload) -> int:
        """Return the weight of an upload, which also applies to the mean number of local steps in `server_update`."""
        return 1
