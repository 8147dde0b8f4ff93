"""Linear models."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import ConfigError


class SparseLinear(nn.Linear):
    """nn.Linear for sparse inputs: parameters, initialisation, outputs and gradients are those of nn.Linear.

    Inputs are (B, L, 2): up to L pairs (feature, value) a sample, filled up with pairs of value 0. A feature may come
    more than once; its values add up.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, classes) scores: sum over pairs of weight[:, feature] · value, plus the bias."""
        if torch.finfo(input.dtype).eps * self.in_features > 1:
            raise ConfigError(f"{input.dtype} cannot hold feature numbers up to {self.in_features}; use float32")
        columns = functional.embedding(input[..., 0].long(), self.weight.t())  # (B, L, classes)
        return torch.einsum("blc,bl->bc", columns, input[..., 1]) + self.bias


def sent140_linear() -> nn.Module:
    """Build the paper's model for Sent140: logistic regression on 5000 token frequencies; 10,002 parameters."""
    return SparseLinear(5000, 2)
