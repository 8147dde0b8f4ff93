"""AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Number, Stats, not_negative
from fedgbo.optimisers.adam import AdamLike


@dataclass(frozen=True)
class AdamW(AdamLike):
    """Adam with decoupled weight decay λ: m from 0, v from 1.

    U: η (β₁ m + (1 - β₁) g) / (√v + ε) + η λ x_t
    T: m <- β₁ m + (1 - β₁) g, v <- β₂ v + (1 - β₂) g²
    I: ((x_t - x_{t+1} - η λ K x_t) (√v + ε) / (η K) - β₁ m) / (1 - β₁)

    With fixed statistics the broadcast model x_t decays, by the same amount in all K local steps, so that U is affine
    in g. torch decays the local model y_k: K steps multiply x_t by (1 - η λ)^K instead of 1 - η λ K, and also decay the
    client's changes since x_t. With moving statistics (MFL's clients, a server optimiser) the current model decays, as
    in torch. As in Adam, there is no bias correction. λ is multiplied by η, as in torch; the paper's λ is our η λ.
    """

    weight_decay: Number = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("weight_decay", self.weight_decay)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params), "v": torch.ones_like(params)}

    def anchor(self, stats: Stats, start: Tensor) -> Stats:
        return {**stats, "start": start}

    def affine(self, stats: Stats) -> tuple[Tensor, Tensor]:
        offset, scale = super().affine(stats)
        return offset + self.lr * self.weight_decay * stats["start"], scale

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - U(g, s); outside of a round, where there is no broadcast model, `params` itself decays."""
        return super().update(params, stats if "start" in stats else self.anchor(stats, params), grad)

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        stepped, stats = super().step(params, stats, grad)
        return stepped - self.lr * self.weight_decay * params, stats
