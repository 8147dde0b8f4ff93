"""AMSGrad (Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Stats, not_negative
from fedgbo.optimisers.adam import AdamLike


@dataclass(frozen=True)
class AMSGrad(AdamLike):
    """Adam that divides by the largest second moment so far: m from 0, v and w from `initial`.

    U: η (β₁ m + (1 - β₁) g) / (√w + ε)
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g², w <- max(w, v)
    I: ((x_t - x_{t+1}) (√w + ε) / (η K) - β₁ m) / (1 - β₁)

    v and w start at 1 like Adam's v. w never decreases, so it differs from 1 only where squared gradients exceed 1; for
    smaller gradients, use a smaller `initial`. The paper and torch start at 0; torch also corrects the bias of both.
    """

    initial: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("initial", self.initial)

    def init(self, params: Tensor) -> Stats:
        v = torch.full_like(params, self.initial)
        return {"m": torch.zeros_like(params), "v": v, "w": v.clone()}

    def denominator(self, stats: Stats) -> Tensor:
        return stats["w"].sqrt() + self.eps

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        tracked = super().track(stats, grad)
        return {**tracked, "w": torch.maximum(stats["w"], tracked["v"])}
