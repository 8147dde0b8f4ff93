"""Yogi (Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Stats, not_negative
from fedgbo.optimisers.adam import AdamLike


@dataclass(frozen=True)
class Yogi(AdamLike):
    """Adam whose second moment moves by a bounded amount: m from 0, v from `initial`.

    U: η (β₁ m + (1 - β₁) g) / (√v + ε)
    T: m <- β₁ m + (1 - β₁) g, v <- v - (1 - β₂) sign(v - g²) g²
    I: ((x_t - x_{t+1}) (√v + ε) / (η K) - β₁ m) / (1 - β₁)

    v starts at 1 like Adam's; the paper estimates it from a first batch, and optax starts m and v at 1e-6. There is no
    bias correction, as in the paper's Algorithm 2; optax corrects both moments.
    """

    initial: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("initial", self.initial)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params), "v": torch.full_like(params, self.initial)}

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        v, square = stats["v"], grad**2
        return {"m": self.momentum(stats, grad), "v": v - (1 - self.beta2) * torch.sign(v - square) * square}
