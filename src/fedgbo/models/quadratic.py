"""The model whose loss is a quadratic."""

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """One parameter vector x, from 0; for each sample, a vector s of scales, it returns s · x, elementwise.

    With targets s · b and `half_squares` as the loss, a sample's loss is ½ (x - b)ᵀ diag(s²) (x - b).
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))

    def forward(self, scales: Tensor) -> Tensor:
        """Return (B, d) outputs for (B, d) scales."""
        return scales * self.x
