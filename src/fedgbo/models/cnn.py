"""Convolutional networks. Max-pool and ReLU commute, so both networks pool first, on a quarter of the ReLU's work."""

from collections import OrderedDict

from torch import nn

from fedgbo.core import whole


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
