"""Plain stochastic gradient descent: no statistics."""

from dataclasses import dataclass

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
