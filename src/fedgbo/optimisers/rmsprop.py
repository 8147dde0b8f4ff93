"""RMSProp (Tieleman and Hinton, 2012): each parameter's step divided by the root of its mean squared gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.checks import decay, positive
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.schedule import Number


@dataclass(frozen=True)
class RMSProp(Optimiser):
    """Second moment v, from v = 1.

    U: η g / (√v + ε)
    T: v <- β v + (1 - β) g²
    I: (x_t - x_{t+1}) (√v + ε) / (η K)

    Table 2 prints g where T must have g²; ε = 1e-3 as in the paper's experiments.
    """

    lr: Number
    beta: Number
    eps: Number = 1e-3

    fixed_ops = 5
    moving_ops = 5
    elementwise = True

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)
        positive("eps", self.eps)

    def init(self, params: Tensor) -> Stats:
        """Return v = 1."""
        return {"v": torch.ones_like(params)}

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - η g / (√v + ε)."""
        return params - self.lr * grad / (stats["v"].sqrt() + self.eps)

    def affine(self, stats: Stats) -> tuple[float, Tensor]:
        """U = 0 + η / (√v + ε) g."""
        return 0.0, self.lr / (stats["v"].sqrt() + self.eps)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        """Return v <- β v + (1 - β) g²."""
        return {"v": self.beta * stats["v"] + (1 - self.beta) * grad**2}

    def invert(self, stats: Stats, delta: Tensor, steps: float) -> Tensor:
        """Return (x_t - x_{t+1}) (√v + ε) / (η K)."""
        return delta * (stats["v"].sqrt() + self.eps) / (self.lr * steps)

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then return y - η g / (√v + ε) and the new v."""
        stats = self.track(stats, grad)
        return self.update(params, stats, grad), stats
