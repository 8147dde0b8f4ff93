"""Adam (Kingma and Ba, 2015) without bias correction, as in the paper."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, decay, positive


@dataclass(frozen=True)
class Adam(AffineOptimiser):
    """Momentum m, from m = 0, and second moment v, from v = 1.

    U: η (β₁ m + (1 - β₁) g) / (√v + ε)
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g²
    I: ((x_t - x_{t+1}) (√v + ε) / (η K) - β₁ m) / (1 - β₁)

    Unlike torch's Adam there is no bias correction, v starts at 1, and ε = 1e-3.
    """

    lr: Number
    beta1: Number
    beta2: Number = 0.99
    eps: Number = 1e-3

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta1", self.beta1)
        decay("beta2", self.beta2)
        positive("eps", self.eps)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params), "v": torch.ones_like(params)}

    def affine(self, stats: Stats) -> tuple[Tensor, Tensor]:
        rate = self.lr / (stats["v"].sqrt() + self.eps)
        return rate * self.beta1 * stats["m"], rate * (1 - self.beta1)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {
            "m": self.beta1 * stats["m"] + (1 - self.beta1) * grad,
            "v": self.beta2 * stats["v"] + (1 - self.beta2) * grad**2,
        }

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then step with the new m and v."""
        stats = self.track(stats, grad)
        return params - self.lr * stats["m"] / (stats["v"].sqrt() + self.eps), stats
