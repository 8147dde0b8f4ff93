"""LSTMs, transformers and residual networks: the same bits for any number of workers and after a resume, and what the
textbook loop computes, up to rounding.
"""

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo import native
from fedgbo.bench.models import Residual
from fedgbo.engines import layers, select
from fedgbo.engines.select import engine_for, explain
from tests.conftest import make_task

GBO = fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9))


class Recurrent(nn.Module):
    """Reads the three numbers of a sample one after the other."""

    def __init__(self, kind, width):
        super().__init__()
        self.body, self.head = kind(1, width, 2, batch_first=True), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x.unsqueeze(2))[0][:, -1])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.lift, self.head = nn.Linear(1, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.encoder(self.lift(x.unsqueeze(2))).mean(1))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = Residual(1, 8, 1), Residual(8, 16, 2)
        self.layers = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers((x.unsqueeze(1) * x.unsqueeze(2)).unsqueeze(1))  # a 3x3 image


MODELS = {
    "lstm": lambda: Recurrent(nn.LSTM, 32),
    "lstm of another width": lambda: Recurrent(nn.LSTM, 9),
    "gru of another width": lambda: Recurrent(nn.GRU, 9),
    "encoder": Encoder,
    "resnet": ResNet,
}


def final(task, **settings):
    return fedgbo.run(task, GBO, **{"rounds": 4, "local_steps": 3, **settings}).params


@pytest.mark.parametrize("name", MODELS)
def test_workers_a_resume_and_the_textbook_loop(name, tmp_path, monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    monkeypatch.setattr(native, "WORTH_ONEDNN", 1)
    monkeypatch.setattr(layers, "WORTH_PYTHON", 1)
    task = make_task(model=MODELS[name], batch_size=4)
    whole = final(task, workers=1)
    assert torch.equal(final(task, workers=2), whole)
    final(task, rounds=2, workers=2, out=tmp_path / "run")
    assert torch.equal(final(task, workers=2, out=tmp_path / "run", resume=True), whole)
    textbook = final(task, engine="plain")
    assert (whole - textbook).abs().max() < 1e-5 * textbook.abs().max()


def test_explain_names_the_faster_layers():
    said = {name: explain(engine_for(make_task(model=build), GBO, 0)) for name, build in MODELS.items()}
    how = "gradients by torch's autograd with faster layers instead of"
    assert f"{how} LSTM (" in said["lstm"]
    assert f"{how} MultiheadAttention (" in said["encoder"]
    assert f"{how} Conv2d (" in said["resnet"]
