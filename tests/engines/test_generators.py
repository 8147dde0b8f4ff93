"""Models that draw random numbers in training, in threads: each draws what torch's own generator would give."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fedgbo
from fedgbo.core import torch_seed
from fedgbo.engines import select
from fedgbo.engines.generators import OwnGenerator
from fedgbo.engines.plain import PlainEngine
from fedgbo.engines.select import engine_for, explain
from fedgbo.engines.threads import ThreadedEngine
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES


@pytest.fixture(autouse=True)
def threads_always_pay(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)


def around(layer):
    """Return a function that makes a network of 8 hidden units with this layer in the middle.

    The C code for whole networks does not know Softplus.
    """
    return lambda: nn.Sequential(nn.Linear(3, 8), nn.Softplus(), layer(), nn.Linear(8, 2))


class Noise(nn.Module):
    """Reparameterised noise, as in a variational autoencoder, with dropout by a function."""

    def forward(self, x):
        if not self.training:
            return x
        return functional.dropout(x, 0.3) + 0.1 * torch.randn_like(x) * torch.rand(len(x), 1)


class Sequence(nn.Module):
    """Treats the 8 units as a sequence of two."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x.view(len(x), 2, 4))
        return (out[0] if isinstance(out, tuple) else out).flatten(1)


MODELS = {
    "dropout": around(lambda: nn.Dropout(0.5)),
    "dropout2d": around(lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Dropout2d(0.5), nn.Flatten())),
    "alpha": around(lambda: nn.AlphaDropout(0.5)),
    "rrelu": around(nn.RReLU),
    "noise": around(Noise),
    "transformer": around(lambda: Sequence(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True))),
    "lstm": around(lambda: Sequence(nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True))),
}


@pytest.mark.parametrize("name", MODELS)
def test_threads_draw_the_same_numbers(name):
    task = make_task(clients=5, batch_size=4, clients_per_round=4, model=MODELS[name])
    engine = engine_for(task, EXAMPLES["fedgbo"], 0, 2)
    assert type(engine) is ThreadedEngine
    assert not engine.plain.draws
    one, *others = (fedgbo.run(task, EXAMPLES["fedgbo"], rounds=3, workers=workers) for workers in (1, 2, 3))
    assert type(engine_for(task, EXAMPLES["fedgbo"], 0, 1)) is PlainEngine
    for other in others:
        assert torch.equal(other.params, one.params)
        assert [r.loss for r in other.history] == [r.loss for r in one.history]
    textbook = fedgbo.run(task, EXAMPLES["fedgbo"], rounds=3, engine="plain")
    assert torch.allclose(one.params, textbook.params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedsam", "mimelite", "scaffold"])
def test_gradients_that_are_taken_again_draw_the_same_numbers(name):
    task = make_task(clients=5, batch_size=4, clients_per_round=4, model=MODELS["dropout"])
    one, two = (fedgbo.run(task, EXAMPLES[name], rounds=3, workers=workers) for workers in (1, 2))
    assert torch.equal(one.params, two.params)


class NumpyNoise(nn.Module):
    def forward(self, x):
        return x * float(np.random.normal(1)) if self.training else x


class PythonNoise(nn.Module):
    def forward(self, x):
        return x * random.random() if self.training else x


class Idle(nn.Module):
    """Draws a number that it does not use."""

    def forward(self, x):
        if self.training:
            np.random.normal()
        return x


class Checkpointed(nn.Module):
    """Draws its numbers again in the backward pass."""

    def forward(self, x):
        return checkpoint(functional.dropout, x, 0.5, self.training, use_reentrant=False)


@pytest.mark.parametrize("layer", [NumpyNoise, PythonNoise, Idle, Checkpointed])
def test_other_draws_keep_clients_in_one_thread(layer):
    task = make_task(clients=5, batch_size=4, clients_per_round=4, model=around(layer))
    engine = engine_for(task, EXAMPLES["fedavg"], 0, 2)
    assert type(engine) is PlainEngine
    assert engine.draws
    assert engine.model.generator is None
    assert "draw random numbers, from generators that threads would share" in explain(engine)
    one, two = (fedgbo.run(task, EXAMPLES["fedavg"], rounds=3, workers=workers) for workers in (1, 2))
    assert torch.equal(one.params, two.params)


class Drawing(fedgbo.FedAvg):
    """A client_update that draws from torch's process-wide generator."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params + 0.01 * torch.randn(len(up.params)))


def test_a_model_and_a_client_update_draw_from_one_generator():
    task = make_task(clients=5, batch_size=4, clients_per_round=4, model=MODELS["dropout"])
    one, two = (fedgbo.run(task, Drawing(fedgbo.SGD(0.1)), rounds=3, workers=workers) for workers in (1, 2))
    assert torch.equal(one.params, two.params)


def test_a_generator_of_its_own_gives_the_numbers_of_torch():
    own, x = OwnGenerator(), torch.ones(50)
    own.seed(3, "dropout", 1, 2)
    state = own.state()
    with own:
        got = functional.dropout(x, 0.4), torch.randn_like(x), torch.randint(9, (5,)), torch.randperm(6)
    torch.manual_seed(torch_seed(3, "dropout", 1, 2))
    before = torch.get_rng_state()
    expected = functional.dropout(x, 0.4), torch.randn_like(x), torch.randint(9, (5,)), torch.randperm(6)
    assert all(map(torch.equal, got, expected))
    torch.set_rng_state(before)
    own.restore(state)
    with own:
        assert torch.equal(functional.dropout(x, 0.4), expected[0])
        user = torch.rand(4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(user, torch.rand(4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), before)
