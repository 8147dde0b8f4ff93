"""What an algorithm may ask of a client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from fedgbo.core.optimiser import Optimiser


class Client(ABC):
    """One client in one round: its local data, seen through gradients only.

    Gradients are of the local objective: the task's loss plus the algorithm's objective terms.
    """

    steps: int  # K of this client in this round

    @abstractmethod
    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on the client's next minibatch."""

    @abstractmethod
    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all of the client's samples."""

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Mapping[str, Tensor]) -> Tensor:
        """Take K local steps y <- y - U(g, s) with the statistics s fixed; return y_K.

        Engines may compute this loop in another way, but never another result.
        """
        for _ in range(self.steps):
            params = optimiser.update(params, stats, self.gradient(params))
        return params
