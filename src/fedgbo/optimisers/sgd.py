"""Plain stochastic gradient descent: no statistics."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, positive


@dataclass(frozen=True)
class SGD(AffineOptimiser):
    """y <- y - η g.

    U: η g
    T: none
    I: (x_t - x_{t+1}) / (η K)
    """

    lr: Number

    def __post_init__(self) -> None:
        positive("lr", self.lr)

    def affine(self, stats: Stats) -> tuple[float, float]:
        return 0.0, self.lr


@dataclass(frozen=True)
class ShiftedSGD(AffineOptimiser):
    """y <- y - η (g + c), with a given c: the local step of algorithms that correct gradients, such as SCAFFOLD."""

    lr: Number

    def affine(self, stats: Stats) -> tuple[Tensor, float]:
        return self.lr * stats["c"], self.lr
