"""Adam (Kingma and Ba, 2015) without bias correction, as in the paper, and what its relatives share."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Number, Stats, decay, not_negative, positive


@dataclass(frozen=True)
class AdamLike(AffineOptimiser):
    """A momentum over the root of a second moment. Subclasses say where both moments start.

    U: η (β₁ m + (1 - β₁) g) / (√v + ε), the same as η m / (√v + ε) with a fresh m
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g²
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

    @abstractmethod
    def init(self, params: Tensor) -> Stats:
        """Return both moments before the first gradient."""

    def momentum(self, stats: Stats, grad: Tensor) -> Tensor:
        """Return β₁ m + (1 - β₁) g."""
        tracked: Tensor = self.beta1 * stats["m"] + (1 - self.beta1) * grad
        return tracked

    def denominator(self, stats: Stats) -> Tensor:
        """Return √v + ε."""
        return stats["v"].sqrt() + self.eps

    def affine(self, stats: Stats) -> tuple[Tensor, Tensor]:
        rate = self.lr / self.denominator(stats)
        return rate * self.beta1 * stats["m"], rate * (1 - self.beta1)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"m": self.momentum(stats, grad), "v": self.beta2 * stats["v"] + (1 - self.beta2) * grad**2}

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Track, then step with the new m and v."""
        stats = self.track(stats, grad)
        return params - self.lr * stats["m"] / self.denominator(stats), stats


@dataclass(frozen=True)
class Adam(AdamLike):
    """Momentum m, from m = 0, and second moment v, from v = `initial`.

    U: η (β₁ m + (1 - β₁) g) / (√v + ε)
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g²
    I: ((x_t - x_{t+1}) (√v + ε) / (η K) - β₁ m) / (1 - β₁)

    Unlike torch's Adam there is no bias correction, v starts at 1, and ε = 1e-3. CorrectedAdam has the correction.
    """

    initial: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("initial", self.initial)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params), "v": torch.full_like(params, self.initial)}
