"""Convolutional networks."""

from collections import OrderedDict

from torch import nn


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
