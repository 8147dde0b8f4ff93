"""RMSProp (Tieleman and Hinton, 2012): each parameter's step divided by the root of its mean squared gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, decay, positive


@dataclass(frozen=True)
class RMSProp(AffineOptimiser):
    """Second moment v, from v = 1.

    U: η g / (√v + ε)
    T: v <- β v + (1 - β) g²
    I: (x_t - x_{t+1}) (√v + ε) / (η K)

    Table 2 prints g where T must have g²; ε = 1e-3 as in the paper's experiments.
    """

    lr: Number
    beta: Number
    eps: Number = 1e-3

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)
        positive("eps", self.eps)

    def init(self, params: Tensor) -> Stats:
        return {"v": torch.ones_like(params)}

    def affine(self, stats: Stats) -> tuple[float, Tensor]:
        return 0.0, self.lr / (stats["v"].sqrt() + self.eps)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"v": self.beta * stats["v"] + (1 - self.beta) * grad**2}

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then update with the new v."""
        stats = self.track(stats, grad)
        return self.update(params, stats, grad), stats
