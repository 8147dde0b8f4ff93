"""torch's count of a gradient, against products counted by hand; and that counting leaves no trace."""

import torch
from torch import nn
from torch.nn import functional

from fedgbo.costs.flops import gradient_flops


def test_two_layers_by_hand():
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    flops = gradient_flops(module, functional.cross_entropy, torch.randn(7, 5), torch.zeros(7, dtype=torch.long))
    forward, weights, inputs = 5 * 4 + 4 * 3, 5 * 4 + 4 * 3, 4 * 3  # the first layer's input needs no gradient
    assert flops == 2 * (forward + weights + inputs)


def test_a_convolution_by_hand():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten())
    flops = gradient_flops(module, functional.cross_entropy, torch.randn(2, 2, 5, 5), torch.zeros(2, dtype=torch.long))
    assert flops == 2 * 2 * (3 * 3 * 3 * 2 * 3 * 3)  # forward and weights: 3x3 places, 3 outputs, 2 x 3x3 products


def test_a_recurrent_layer_costs_its_products():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 4, batch_first=True)

        def forward(self, x):
            return self.gru(x)[0][:, -1]

    flops = gradient_flops(Last(), functional.cross_entropy, torch.randn(3, 6, 2), torch.zeros(3, dtype=torch.long))
    forward = weights = 6 * 3 * 4 * (2 + 4)
    hidden = 5 * 3 * 4 * 4  # back through time; the first state needs no gradient
    assert flops == 2 * (forward + weights + hidden)


def test_counting_leaves_no_trace():
    module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    module[0].weight.grad = torch.full((4, 5), 7.0)
    state = torch.get_rng_state()
    gradient_flops(module, functional.cross_entropy, torch.ones(7, 5), torch.zeros(7).long())
    assert torch.equal(module[0].weight.grad, torch.full((4, 5), 7.0))
    assert module[2].weight.grad is None
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)
