import torch
from torch import nn

from fedgbo.costs.flops import forward_macs
from fedgbo.models.paper import shakespeare_gru


def test_size_and_operations_are_the_papers():
    model = shakespeare_gru()
    assert sum(p.numel() for p in model.parameters()) == 162_887
    assert forward_macs(model, torch.zeros(2, 80, dtype=torch.long)) == 12_318_592


def test_only_the_last_time_step_is_scored():
    torch.manual_seed(0)
    model = shakespeare_gru()
    x = torch.randint(79, (3, 80))
    out = model(x)
    assert out.shape == (3, 79)
    gru, output = model.gru, model.output
    assert isinstance(gru, nn.GRU)
    torch.testing.assert_close(out, output(gru(model.embedding(x))[1][-1]))
