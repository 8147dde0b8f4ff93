"""The paper's networks: two CNNs, a GRU over characters and a linear model on sparse features."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import ConfigError, whole


def paper_cnn(channels: int, size: int, classes: int) -> nn.Module:
    """Build the paper's network for CIFAR100 and FEMNIST (Appendix A), initialised as torch does.

    Two 3x3 convolutions without padding, of 32 and 64 channels, each with ReLU and 2x2 max-pooling; a hidden layer of
    512. That is 1,250,852 parameters for CIFAR100 (3, 32, 100) and 870,334 for FEMNIST (1, 28, 62).
    """
    whole("size", size, least=10)
    side = ((size - 2) // 2 - 2) // 2  # of the second pooling's output
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(64 * side * side, 512),
            relu3=nn.ReLU(),
            output=nn.Linear(512, classes),
        )
    )


def digits_cnn(classes: int = 10) -> nn.Module:
    """Build a small network for 8x8 grey images: a 3x3 convolution and one hidden layer; 10,090 parameters."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 16, 3),  # 16 x 6 x 6
            pool=nn.MaxPool2d(2),  # 16 x 3 x 3
            relu1=nn.ReLU(),
            flatten=nn.Flatten(),  # 144
            hidden=nn.Linear(144, 64),
            relu2=nn.ReLU(),
            output=nn.Linear(64, classes),
        )
    )


class LastStep(nn.Module):
    """A character model: embedding, stacked GRU, and scores of the next character from the last time step only."""

    def __init__(self, symbols: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.gru = nn.GRU(embedding, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, symbols)

    def forward(self, characters: Tensor) -> Tensor:
        """Turn (B, time) numbers of characters into (B, symbols) scores."""
        states, _ = self.gru(self.embedding(characters))  # (B, time, hidden)
        scores: Tensor = self.output(states[:, -1])
        return scores


def shakespeare_gru() -> nn.Module:
    """Build the paper's network for Shakespeare: 79 characters, two layers of 128 units; 162,887 parameters."""
    return LastStep(symbols=79, embedding=8, hidden=128, layers=2)


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
