"""The paper's count F, by hand, and the figures in experiments/paper/published/sizes.toml, which follow from it."""

import pytest
import torch
from torch import nn

from fedgbo.costs.flops import forward_macs, local_update_flops
from fedgbo.experiments.paper.published import tasks


def paper_like_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """The layers that the paper describes: two 3x3 convolutions of 32 and 64 channels, pooled, then 512 units."""
    last = ((side - 2) // 2 - 2) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * last * last, 512),
        nn.Linear(512, classes),
    )


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(79, 8)
        self.gru = nn.GRU(8, 128, num_layers=2, batch_first=True)
        self.output = nn.Linear(128, 79)

    def forward(self, x):
        return self.output(self.gru(self.embedding(x))[0][:, -1])


MODELS = {
    "cifar100": (paper_like_cnn(3, 32, 100), torch.zeros(2, 3, 32, 32)),
    "femnist": (paper_like_cnn(1, 28, 62), torch.zeros(2, 1, 28, 28)),
    "sent140": (nn.Linear(5000, 2), torch.zeros(3, 5000)),
    "shakespeare": (Characters(), torch.zeros(2, 80, dtype=torch.long)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_sizes(name):
    module, inputs = MODELS[name]
    task = tasks()[name]
    assert sum(p.numel() for p in module.parameters()) == task.params
    assert forward_macs(module, inputs) == task.macs


def test_a_subclass_counts_as_its_kind():
    class Own(nn.Linear):
        pass

    assert forward_macs(Own(5, 3), torch.zeros(7, 5)) == 15


def test_a_convolution_counts_its_bias():
    assert forward_macs(nn.Conv2d(2, 3, 3), torch.zeros(4, 2, 5, 5)) == 3 * 3 * 3 * (2 * 9 + 1)
    assert forward_macs(nn.Conv2d(2, 3, 3, bias=False), torch.zeros(4, 2, 5, 5)) == 3 * 3 * 3 * 2 * 9


def test_counting_leaves_the_mode_alone():
    module = nn.Linear(2, 2).train()
    forward_macs(module, torch.zeros(1, 2))
    assert module.training
    assert not module._forward_hooks


def test_a_local_update_by_hand():
    assert local_update_flops(samples=40, steps=10, macs=7, params=100, step_ops=5) == 40 * 21 + 10 * 500
