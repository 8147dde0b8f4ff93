"""SGD with Nesterov's momentum (Nesterov, 1983; in this form Sutskever et al., 2013)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, decay, positive


@dataclass(frozen=True)
class Nesterov(AffineOptimiser):
    """Momentum m, from m = 0, and a step along the momentum of the following step.

    U: η (β² m + (1 - β²) g)
    T: m <- β m + (1 - β) g
    I: ((x_t - x_{t+1}) / (η K) - β² m) / (1 - β²)

    U is η (β m' + (1 - β) g) with the fresh m'. torch's SGD(momentum, nesterov=True) leaves out the factor 1 - β of the
    gradient; divide its lr by 1 - β to compare.
    """

    lr: Number
    beta: Number

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params)}

    def affine(self, stats: Stats) -> tuple[Tensor, float]:
        return self.lr * self.beta**2 * stats["m"], self.lr * (1 - self.beta**2)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"m": self.beta * stats["m"] + (1 - self.beta) * grad}
