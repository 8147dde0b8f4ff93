"""The parts of a round between clients and server: who takes part, what happens to uploads, how they are combined."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedgbo.core.state import State
from fedgbo.core.upload import Mean, Upload


class Sampler(ABC):
    """Decides which clients take part in a round: a pure function of their number and of a random stream."""

    @abstractmethod
    def sample(self, clients: int, rng: np.random.Generator) -> list[int]:
        """Return the cohort in ascending order; it may be empty, and the round then changes nothing."""


class Transform(ABC):  # noqa: B024 - a transform overrides one method or both
    """Changes uploads on their way: clipping, compression, noise. A pair of pure functions.

    `rng` is a random stream of its own for every transform, round and client.
    """

    def encode(self, upload: Upload, rng: np.random.Generator) -> Upload:
        """Return what the client sends instead; a transform that compresses sets `nbytes` to what travels."""
        return upload

    def decode(self, mean: Mean, rng: np.random.Generator) -> Mean:
        """Return what the server sees instead of the combined uploads."""
        return mean


class Aggregator(ABC):
    """Combines a round's uploads into one state: a pure function whose result does not depend on their order."""

    @abstractmethod
    def combine(self, uploads: Iterable[Upload]) -> State:
        """Return the combined vectors, in the type of the uploads. Uploads come in ascending order of clients."""

    def weight(self, upload: Upload) -> int:
        """Return how much an upload counts: also in the mean number of local steps that `server_update` is given."""
        return 1


def with_state(upload: Upload, state: State) -> Upload:
    """Return the upload with other vectors, counted at their full size."""
    return replace(upload, state=state, nbytes=state.nbytes)
