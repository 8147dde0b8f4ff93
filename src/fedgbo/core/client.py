"""What an algorithm may ask of a client."""

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

from fedgbo.core.optimiser import Optimiser, Stats


class Client(ABC):
    """One client in one round, which gives access to losses and gradients on its local data.

    Gradients are of the local objective: the task's loss plus the algorithm's objective terms.
    """

    id: int  # 0 ... N - 1, the same in every round
    samples: int  # n, the number of its training samples
    steps: int  # K of this client in this round
    state: dict[str, Tensor]  # vectors kept from round to round; see FederatedAlgorithm.client_state

    @property
    @abstractmethod
    def rng(self) -> np.random.Generator:
        """A random stream for this client and round. Results are reproducible only if you use no other generator."""

    @abstractmethod
    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        """Return the gradient at `params` on the next minibatch or, with `again`, on the last one once more."""

    @abstractmethod
    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all of the client's samples."""

    @abstractmethod
    def loss(self, params: Tensor) -> float:
        """Return the task's loss at `params`, mean over all of the client's samples, without objective terms."""

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        """Take K local steps y <- y - U(g, s) with the statistics s fixed; return y_K.

        This loop is the definition. Engines may compute it in a faster way; results then agree up to rounding.
        """
        stats = optimiser.anchor(stats, params)
        for _ in range(self.steps):
            params = optimiser.update(params, stats, self.gradient(params))
        return params
