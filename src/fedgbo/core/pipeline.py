"""The parts of a round between clients and server: who takes part, what clients upload, how uploads are combined."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedgbo.core.state import State


@dataclass(frozen=True, eq=False)
class Upload:
    """The upload of one client in one round. Only `state` and `samples` come from the algorithm."""

    client: int
    state: State  # the model as the difference x_t - y_K, and statistics
    steps: int  # K
    samples: int  # n, the client's training samples
    loss: float  # mean training loss over the client's minibatches
    nbytes: int  # that travel; a transform that compresses sets it
    gradients: int = 0  # sample gradients that the client computed
    operations: float | None = 0.0  # other operations per parameter in this round; None: not counted


@dataclass(frozen=True, eq=False)
class Mean:
    """The combined uploads of a round, the number of clients that took part, and the number of all clients."""

    params: Tensor  # (P,), of the differences x_t - y_K
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # each (P,), or (1,) for one number
    clients: int = 1  # whose uploads were combined
    population: int = 1  # N, all clients of the task
    buffers: Tensor | None = None  # (B,), of the differences that training made to the model's buffers


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
        """Return how many rounds ago each client of round t's cohort downloaded its model; empty if none is late."""
        return ()

    def most_stale(self) -> int:
        """Return the largest number that `staleness` may return: 0 unless clients are asynchronous."""
        return 0

    def for_run(self, work: Workload) -> "Sampler":
        """Return the sampler for a run with this work; by default this sampler."""
        return self

    def elapsed(self, t: int) -> float | None:
        """Return the seconds on a virtual clock until the end of round t (0 for t = -1); None without such a clock."""
        return None

    def source(self) -> str | None:
        """Return a digest of what the sampler reads from files, so that a run is not resumed with other contents."""
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
