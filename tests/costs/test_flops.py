"""The paper's count F, by hand, and the figures in experiments/paper/published/sizes.toml, which follow from it."""

import pytest
import torch
from torch import nn

from fedgbo.costs.flops import forward_macs, local_update_flops
from fedgbo.experiments.paper.cost_tables import tasks
from fedgbo.models.cnn import paper_cnn
from fedgbo.models.gru import shakespeare_gru
from fedgbo.models.linear import sent140_linear
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


def test_counting_leaves_the_mode_alone():
    module = nn.Linear(2, 2).train()
    forward_macs(module, torch.zeros(1, 2))
    assert module.training
    assert not module._forward_hooks


def test_a_local_update_by_hand():
    assert local_update_flops(samples=40, steps=10, macs=7, params=100, step_ops=5) == 40 * 21 + 10 * 500
