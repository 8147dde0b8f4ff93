"""Signum (Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Number, Optimiser, Stats, decay, positive


@dataclass(frozen=True)
class Signum(Optimiser):
    """The sign of SGDm's momentum, from m = 0; with β = 0, signSGD.

    U: η sign(β m + (1 - β) g)
    T: m <- β m + (1 - β) g

    The sign has no inverse: FedGBO's clients send the sums of their gradients.
    """

    lr: Number
    beta: Number = 0.9

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta", self.beta)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params)}

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        return params - self.lr * torch.sign(self.beta * stats["m"] + (1 - self.beta) * grad)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"m": self.beta * stats["m"] + (1 - self.beta) * grad}
