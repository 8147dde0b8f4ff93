import pytest
import torch
from torch import nn

from fedgbo.costs.flops import forward_macs, local_update_flops


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(79, 8), nn.GRU(8, 128, 2, batch_first=True), nn.Linear(128, 79)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0][:, -1])


def cnn(channels, width, classes):
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * width * width, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "inputs", "macs", "params"),
    [
        (cnn(3, 6, 100), torch.zeros(2, 3, 32, 32), 5_163_072, 1_250_852),
        (nn.Linear(5000, 2), torch.zeros(3, 5000), 10_000, 10_002),
        (cnn(1, 5, 62), torch.zeros(1, 1, 28, 28), 3_305_280, 870_334),
        (Gru(), torch.zeros(2, 80, dtype=torch.long), 12_318_592, 162_887),
    ],
    ids=["cifar100", "sent140", "femnist", "shakespeare"],
)
def test_the_papers_models(model, inputs, macs, params):
    assert forward_macs(model, inputs) == macs
    assert sum(p.numel() for p in model.parameters()) == params
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_cell_of_table_7():
    """CIFAR100, FedGBO with SGDm, K = 10: 50.2e8."""
    flops = local_update_flops(samples=10 * 32, steps=10, macs=5_163_072, params=1_250_852, step_ops=5)
    assert f"{flops / 1e8:.3g}" == "50.2"
