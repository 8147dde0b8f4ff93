"""Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Number, Optimiser, Stats, decay, positive


@dataclass(frozen=True)
class Lion(Optimiser):
    """The sign of a momentum, from m = 0.

    U: η sign(β₁ m + (1 - β₁) g)
    T: m <- β₂ m + (1 - β₂) g

    The sign has no inverse: FedGBO's clients send the sums of their gradients. The paper's weight decay is left out.
    """

    lr: Number
    beta1: Number = 0.9
    beta2: Number = 0.99

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        decay("beta1", self.beta1)
        decay("beta2", self.beta2)

    def init(self, params: Tensor) -> Stats:
        return {"m": torch.zeros_like(params)}

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        return params - self.lr * torch.sign(self.beta1 * stats["m"] + (1 - self.beta1) * grad)

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        return {"m": self.beta2 * stats["m"] + (1 - self.beta2) * grad}
