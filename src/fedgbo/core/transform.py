"""Transforms change uploads on their way: clipping, compression, noise."""

from abc import ABC
from dataclasses import replace

import numpy as np

from fedgbo.core.state import State
from fedgbo.core.upload import Mean, Upload


class Transform(ABC):  # noqa: B024 - a transform overrides one method or both
    """A pair of pure functions. `rng` is a random stream of its own for every transform, round and client."""

    def encode(self, upload: Upload, rng: np.random.Generator) -> Upload:
        """Return what the client sends instead; a transform that compresses sets `nbytes` to what travels."""
        return upload

    def decode(self, mean: Mean, rng: np.random.Generator) -> Mean:
        """Return what the server sees instead of the combined uploads."""
        return mean


def with_state(upload: Upload, state: State) -> Upload:
    """Return the upload with other vectors, counted at their full size."""
    return replace(upload, state=state, nbytes=state.nbytes)
