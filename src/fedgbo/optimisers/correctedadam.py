"""Adam with bias correction (Kingma and Ba, 2015, Algorithm 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Stats
from fedgbo.optimisers.adam import AdamLike


@dataclass(frozen=True)
class CorrectedAdam(AdamLike):
    """Adam with bias correction: m, v and the number of tracked gradients t from 0.

    U: η (β₁ m + (1 - β₁) g) / (1 - β₁^(t+1)) / (√w + ε), with w = v / (1 - β₂^t), and w = 1 for t = 0
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g², t <- t + 1
    I: ((x_t - x_{t+1}) (1 - β₁^(t+1)) (√w + ε) / (η K) - β₁ m) / (1 - β₁)

    A step with moving statistics equals torch's Adam, which has ε = 1e-8. With fixed statistics the first round has no
    estimate of v and uses 1, the initial v of the other optimisers. In FedGBO and Mimelite t counts rounds, in MFL
    local steps (the mean over clients).
    """

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params), "v": torch.zeros_like(params), "t": params.new_zeros(1)}

    def denominator(self, stats: Stats) -> Tensor:
        v = torch.where(stats["t"] > 0, stats["v"] / (1 - self.beta2 ** stats["t"]), 1.0)
        return v.sqrt() + self.eps

    def affine(self, stats: Stats) -> tuple[Tensor, Tensor]:
        offset, scale = super().affine(stats)
        seen = 1 - self.beta1 ** (stats["t"] + 1)
        return offset / seen, scale / seen

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {**super().track(stats, grad), "t": stats["t"] + 1}

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        stats = self.track(stats, grad)
        m = stats["m"] / (1 - self.beta1 ** stats["t"])
        return params - self.lr * m / self.denominator(stats), stats
