"""SGD with momentum, as an exponential moving average of gradients (the paper's Table 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.checks import decay, positive
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.schedule import Number


@dataclass(frozen=True)
class SGDm(Optimiser):
    """Momentum m, from m = 0.

    U: η (β m + (1 - β) g)
    T: m <- β m + (1 - β) g
    I: ((x_t - x_{t+1}) / (η K) - β m) / (1 - β)

    torch's SGD(momentum) leaves out the factor 1 - β; divide its lr by 1 - β to compare.
    """

    lr: Number
    beta: Number

    fixed_ops = 5
    moving_ops = 8
    elementwise = True

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)

    def init(self, params: Tensor) -> Stats:
        """Return m = 0."""
        return {"m": torch.zeros_like(params)}

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - η (β m + (1 - β) g)."""
        return params - self.lr * (self.beta * stats["m"] + (1 - self.beta) * grad)

    def affine(self, stats: Stats) -> tuple[Tensor, float]:
        """U = η β m + η (1 - β) g."""
        return self.lr * self.beta * stats["m"], float(self.lr * (1 - self.beta))

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        """Return m <- β m + (1 - β) g."""
        return {"m": self.beta * stats["m"] + (1 - self.beta) * grad}

    def invert(self, stats: Stats, delta: Tensor, steps: float) -> Tensor:
        """Return ((x_t - x_{t+1}) / (η K) - β m) / (1 - β)."""
        return (delta / (self.lr * steps) - self.beta * stats["m"]) / (1 - self.beta)

    def learn(self, stats: Stats, delta: Tensor, steps: float) -> Stats:
        """Return β m + (1 - β) I = (x_t - x_{t+1}) / (η K)."""
        return {"m": delta * (1 / (self.lr * steps))}  # quicker than a division

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then return y - η m and the new m."""
        stats = self.track(stats, grad)
        return params - self.lr * stats["m"], stats
