"""Samplers decide which clients take part in a round."""

from abc import ABC, abstractmethod

import numpy as np


class Sampler(ABC):
    """A pure function of the number of clients and of a random stream named by seed and round."""

    @abstractmethod
    def sample(self, clients: int, rng: np.random.Generator) -> list[int]:
        """Return the cohort in ascending order; it may be empty, and the round then changes nothing."""
