"""Plain stochastic gradient descent: no statistics."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core.checks import positive
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.schedule import Number


@dataclass(frozen=True)
class SGD(Optimiser):
    """y <- y - η g.

    U: η g
    T: none
    I: (x_t - x_{t+1}) / (η K)
    """

    lr: Number

    elementwise = True

    def __post_init__(self) -> None:
        positive("lr", self.lr)

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - η g."""
        return params - self.lr * grad

    def affine(self, stats: Stats) -> tuple[float, float]:
        """U = 0 + η g."""
        return 0.0, float(self.lr)

    def invert(self, stats: Stats, delta: Tensor, steps: float) -> Tensor:
        """Return (x_t - x_{t+1}) / (η K)."""
        return delta / (self.lr * steps)
