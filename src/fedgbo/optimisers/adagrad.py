"""AdaGrad (Duchi, Hazan and Singer, 2011): rates that fall with the sum of squared gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, not_negative, positive


@dataclass(frozen=True)
class AdaGrad(AffineOptimiser):
    """Sum of squares v, from v = `initial`.

    U: η g / (√v + ε)
    T: v <- v + g²
    I: (x_t - x_{t+1}) (√v + ε) / (η K)

    v starts at 1 like that of RMSProp and Adam, since FedGBO's first round has no other v to divide by. torch's Adagrad
    starts at 0 with ε = 1e-10 and optax's at 0.1 with ε = 1e-7, which it adds under the root; our ε is 1e-3.
    """

    lr: Number
    eps: Number = 1e-3
    initial: float = 1.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        positive("eps", self.eps)
        not_negative("initial", self.initial)

    def init(self, params: Tensor) -> Stats:
        return {"v": torch.full_like(params, self.initial)}

    def affine(self, stats: Stats) -> tuple[float, Tensor]:
        return 0.0, self.lr / (stats["v"].sqrt() + self.eps)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"v": stats["v"] + grad**2}

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then update with the new v."""
        stats = self.track(stats, grad)
        return self.update(params, stats, grad), stats
