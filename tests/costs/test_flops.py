"""The paper's count F and torch's count of a gradient, by hand, and the published sizes, which follow from F."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedgbo.bench.models import MODELS as BENCH_MODELS
from fedgbo.costs.flops import ModelCost, forward_macs, gradient_flops, local_update_flops
from fedgbo.experiments.paper.cost_tables import tasks
from fedgbo.models.paper import paper_cnn, sent140_linear, shakespeare_gru
from fedgbo.tasks import TASKS

MODELS = {
    "cifar100": (paper_cnn(3, 32, 100), torch.zeros(2, 3, 32, 32)),
    "femnist": (paper_cnn(1, 28, 62), torch.zeros(2, 1, 28, 28)),
    "sent140": (sent140_linear(), torch.zeros(3, 7, 2)),
    "shakespeare": (shakespeare_gru(), torch.zeros(2, 80, dtype=torch.long)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_sizes(name):
    module, inputs = MODELS[name]
    task = tasks()[name]
    assert sum(p.numel() for p in module.parameters()) == task.params
    assert forward_macs(module, inputs) == task.macs


@pytest.mark.parametrize("name", MODELS)
def test_the_stand_ins_have_the_papers_clients_and_batches(name):
    task, paper = TASKS[f"{name}-synthetic"](), tasks()[name]
    assert task.data.clients == paper.clients
    assert (task.cohort_size, task.batch_size) == (paper.clients_per_round, paper.batch_size)
    assert len(task.data.train) / task.data.clients == pytest.approx(paper.mean_samples, rel=0.02)
    assert sum(p.numel() for p in task.model().parameters()) == paper.params


def test_a_subclass_counts_as_its_kind():
    class Own(nn.Linear):
        pass

    assert forward_macs(Own(5, 3), torch.zeros(7, 5)) == 15


def test_a_convolution_counts_its_bias():
    assert forward_macs(nn.Conv2d(2, 3, 3), torch.zeros(4, 2, 5, 5)) == 3 * 3 * 3 * (2 * 9 + 1)
    assert forward_macs(nn.Conv2d(2, 3, 3, bias=False), torch.zeros(4, 2, 5, 5)) == 3 * 3 * 3 * 2 * 9


def test_a_transposed_convolution_by_hand():
    module = nn.ConvTranspose2d(2, 3, kernel_size=2, stride=2)
    assert forward_macs(module, torch.zeros(4, 2, 5, 5)) == 2 * 25 * 3 * 4 + 3 * 100  # its 10x10 outputs have a bias


@pytest.mark.parametrize(
    ("layer", "token"),
    [
        (nn.LSTM(3, 4), 4 * 4 * (3 + 4) + 13 * 4),
        (nn.GRU(3, 4), 3 * 4 * (3 + 4) + 13 * 4),
        (nn.RNN(3, 4), 4 * (3 + 4) + 2 * 4),
        (nn.LSTM(3, 4, num_layers=2), 4 * 4 * (3 + 4 + 4 + 4) + 2 * 13 * 4),
        (nn.GRU(3, 4, num_layers=2, bidirectional=True), 2 * (3 * 4 * (3 + 4 + 8 + 4) + 2 * 13 * 4)),
        (nn.LSTM(3, 4, proj_size=2), 4 * 4 * (3 + 2) + 13 * 4 + 4 * 2),
    ],
)
def test_recurrent_layers_by_hand(layer, token):
    assert forward_macs(layer, torch.zeros(1, 7, 3)) == 7 * token


def test_packed_sequences_count_their_own_time_steps():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(3, 4)

        def forward(self, x):
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, [5, 2]))[0].data

    assert forward_macs(Packed(), torch.zeros(5, 2, 3)) == (5 + 2) * 36 // 5  # five "samples": time comes first here


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_by_hand(batch_first):
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, kdim=5, vdim=4, batch_first=batch_first)

        def forward(self, x):
            places = [(1, n) if batch_first else (n, 1) for n in (3, 7)]
            key, value = torch.zeros(*places[1], 5), torch.zeros(*places[1], 4)
            return self.attention(x.view(*places[0], 6), key, value=value)[0]

    projections = 3 * 6 * 6 + 7 * 5 * 6 + 7 * 4 * 6 + 3 * 6 * 6
    assert forward_macs(Cross(), torch.zeros(1, 18)) == projections + 2 * 3 * 7 * 6


def test_a_transformer_counts_its_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    by_token = 4 * 8 * 8 + 2 * 5 * 8 + 2 * 8 * 16
    assert forward_macs(layer, torch.zeros(3, 5, 8)) == 5 * by_token


def test_counting_leaves_the_mode_alone():
    module = nn.Linear(2, 2).train()
    forward_macs(module, torch.zeros(1, 2))
    assert module.training
    assert not module._forward_hooks


def test_a_local_update_by_hand():
    assert local_update_flops(samples=40, steps=10, macs=7, params=100, step_ops=5) == 40 * 21 + 10 * 500


def test_the_gradient_of_two_layers_by_hand():
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    flops = gradient_flops(module, functional.cross_entropy, torch.randn(7, 5), torch.zeros(7, dtype=torch.long))
    forward, weights, inputs = 5 * 4 + 4 * 3, 5 * 4 + 4 * 3, 4 * 3  # the first layer's input needs no gradient
    assert flops == 2 * (forward + weights + inputs)


def test_the_gradient_of_a_convolution_by_hand():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten())
    flops = gradient_flops(module, functional.cross_entropy, torch.randn(2, 2, 5, 5), torch.zeros(2, dtype=torch.long))
    assert flops == 2 * 2 * (3 * 3 * 3 * 2 * 3 * 3)  # forward and weights: 3x3 places, 3 outputs, 2 x 3x3 products


def test_the_gradient_of_a_recurrent_layer_costs_its_products():
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


@pytest.mark.parametrize("name", ["lstm", "transformer", "small-cnn"])
def test_the_gradient_costs_what_torchs_own_counter_counts(name):
    task = BENCH_MODELS[name].task()
    module, (inputs, targets) = task.model().train(), task.data.train.batch(np.arange(3))
    with FlopCounterMode(display=False) as counter:
        task.loss(module(inputs), targets).backward()
    assert gradient_flops(module, task.loss, inputs, targets) == counter.get_total_flops() / 3 > 0


def test_counting_gradients_leaves_gradients_and_generator_alone():
    module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    module[0].weight.grad = torch.full((4, 5), 7.0)
    state = torch.get_rng_state()
    ModelCost.of(module, functional.cross_entropy, torch.ones(7, 5), torch.zeros(7).long())
    assert torch.equal(module[0].weight.grad, torch.full((4, 5), 7.0))
    assert module[2].weight.grad is None
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)
