"""SGD with momentum, as an exponential moving average of gradients (the paper's Table 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, decay, positive


@dataclass(frozen=True)
class SGDm(AffineOptimiser):
    """Momentum m, from m = 0.

    U: η (β m + (1 - β) g)
    T: m <- β m + (1 - β) g
    I: ((x_t - x_{t+1}) / (η K) - β m) / (1 - β)

    torch's SGD(momentum) leaves out the factor 1 - β; divide its lr by 1 - β to compare.
    """

    lr: Number
    beta: Number

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params)}

    def affine(self, stats: Stats) -> tuple[Tensor, float]:
        return self.lr * self.beta * stats["m"], self.lr * (1 - self.beta)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"m": self.beta * stats["m"] + (1 - self.beta) * grad}
