"""Groups of clients under torch.func.vmap, on the CPU, against the textbook loop."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.data.images import ImageSamples
from fedgbo.data.samples import Samples
from fedgbo.engines import cohort
from fedgbo.engines.cohort import CohortEngine
from fedgbo.engines.select import engine_for, explain
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES, numbers, train, vectors

REFUSED = {
    "fedbn": "torch.func.vmap fails",  # a mask takes a part of a vector
    "fedper": "torch.func.vmap fails",
    "fedrep": "torch.func.vmap fails",
    "qfedavg": "client_update asks for client.loss",
}


def small_cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def images(sizes=(6, 9, 4, 7, 5), *, augmented=True, model=small_cnn, **more):
    """A task of small images, with clients of unequal sizes."""
    random = np.random.default_rng(0)

    def samples(count, **options):
        pixels = random.integers(256, size=(count, 1, 4, 4), dtype=np.uint8)
        return ImageSamples(pixels, random.integers(3, size=count, dtype=np.uint8), crop=4, **options)

    train = samples(sum(sizes), flip=augmented, padding=int(augmented))
    data = fedgbo.FederatedData(train, np.cumsum([0, *sizes]), samples(5))
    return fedgbo.Task("images", data, model, **({"batch_size": 4} | more))


def run(task, algorithm, **settings):
    return fedgbo.run(task, algorithm, **({"rounds": 3, "local_steps": 3} | settings))


def assert_close(found, expected):
    assert torch.allclose(found.params, expected.params, rtol=1e-4, atol=1e-6)
    ours, theirs = found.history[-1], expected.history[-1]
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-5)
    assert (ours.flops, ours.upload_bytes) == (theirs.flops, theirs.upload_bytes)


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - REFUSED.keys()))
def test_every_algorithm_is_as_in_the_textbook(name):
    task = make_task(clients=5, samples=7, batch_size=4)
    assert type(engine_for(task, EXAMPLES[name], 0, engine="vmap")) is CohortEngine
    assert_close(run(task, EXAMPLES[name], engine="vmap"), run(task, EXAMPLES[name], engine="plain"))


@pytest.mark.parametrize("name", REFUSED)
def test_algorithms_that_cannot_be_stacked_are_refused(name):
    with pytest.raises(fedgbo.ConfigError, match=f"engine vmap cannot train this: {REFUSED[name]}.*; use auto, or pl"):
        engine_for(make_task(), EXAMPLES[name], 0, engine="vmap")


@pytest.mark.parametrize("name", ["fedgbo", "mime", "scaffold", "fedmax"])
@pytest.mark.parametrize("batch_size", [4, 8, None])  # some clients have fewer samples than a batch; all of them
@pytest.mark.parametrize("augmented", [True, False])
def test_unequal_clients(name, batch_size, augmented, monkeypatch):
    """Unequal numbers of samples and of local steps, in groups of three, with random minibatches."""
    monkeypatch.setattr(CohortEngine, "_most", lambda self: 3)
    task = images(augmented=augmented, batch_size=batch_size)
    if name == "fedmax":
        task = replace(task, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)))
    algorithm, who, steps = EXAMPLES[name], [0, 1, 2, 3, 4], [2, 1, 2, 2, 1]
    engines = [engine_for(task, algorithm, 0, engine=kind) for kind in ("vmap", "plain")]
    found, expected = (train(engine, algorithm, who, steps, t=2) for engine in engines)
    assert numbers(found) | {"loss": 0} == numbers(expected) | {"loss": 0}
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for vector, (label, theirs) in zip(vectors(found).values(), vectors(expected).items(), strict=True):
        assert torch.allclose(vector, theirs, rtol=1e-4, atol=1e-6), label
        assert name == "scaffold" or theirs.abs().max() > 1e-4


def test_client_states_and_a_resume_change_no_bit(tmp_path):
    task = make_task(clients=6, samples=7, batch_size=4, clients_per_round=4)
    whole = run(task, EXAMPLES["scaffold"], engine="vmap", rounds=5, local_steps=lambda client, t: 1 + client % 2)
    again = run(task, EXAMPLES["scaffold"], engine="vmap", rounds=5, local_steps=lambda client, t: 1 + client % 2)
    assert torch.equal(whole.params, again.params)
    first = run(task, EXAMPLES["scaffold"], engine="vmap", rounds=2, out=tmp_path / "run")
    resumed = run(task, EXAMPLES["scaffold"], engine="vmap", rounds=5, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.params, run(task, EXAMPLES["scaffold"], engine="vmap", rounds=5).params)
    assert not torch.equal(first.params, resumed.params)


class Texts(Samples):
    """Minibatches as long as their longest text."""

    def __init__(self, count):
        self.lengths = np.random.default_rng(0).integers(2, 9, size=count)

    def __len__(self):
        return len(self.lengths)

    def label_range(self):
        return 0, 1

    def batch(self, rows, rng=None):
        length = self.lengths[rows].max()
        letters = (rows[:, None] + np.arange(length)) % 7 + 1
        inside = np.arange(length) < self.lengths[rows][:, None]
        return torch.from_numpy(letters * inside), torch.from_numpy(rows % 2)


def test_minibatches_of_different_lengths_are_trained_one_client_at_a_time():
    data = fedgbo.FederatedData(Texts(40), np.arange(0, 41, 10), Texts(5))
    model = lambda: nn.Sequential(nn.EmbeddingBag(8, 4, padding_idx=0), nn.Linear(4, 2))  # noqa: E731
    task = fedgbo.Task("texts", data, model, batch_size=2)
    assert_close(run(task, EXAMPLES["fedgbo"], engine="vmap"), run(task, EXAMPLES["fedgbo"], engine="plain"))


class Pair(nn.Module):
    """Takes two inputs, and ties a layer's weights to another's."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.other.weight = self.one.weight
        self.one.bias.requires_grad_(False)

    def forward(self, left, right):
        return self.out(torch.tanh(self.one(left) + self.other(right)))


def test_several_inputs_tied_and_frozen_weights_and_a_loss_of_regression():
    random = np.random.default_rng(0)
    draw = lambda *size: torch.from_numpy(random.normal(size=size).astype("f4"))  # noqa: E731
    pairs = [((draw(6, 3), draw(6, 3)), draw(6, 2)) for _ in range(4)]
    data = fedgbo.FederatedData.from_clients(train=pairs[:3], test=pairs[3])
    task = fedgbo.Task("pairs", data, Pair, batch_size=4, loss=functional.mse_loss, metric=None)
    assert_close(run(task, EXAMPLES["fedgbo"], engine="vmap"), run(task, EXAMPLES["fedgbo"], engine="plain"))


@dataclass(frozen=True)
class Drawing(fedgbo.FedAvg):
    """Asks each client for something that differs between clients."""

    what: str = "rng"

    def client_update(self, down, client):
        noise = {
            "rng": lambda: client.rng.normal(), "id": lambda: client.id, "numpy": np.random.normal,
            "torch": lambda: torch.rand(()), "branch": lambda: 1.0 if client.gradient(down.params).sum() > 0 else 2.0,
        }[self.what]()  # fmt: skip
        return fedgbo.State(noise * down.params)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("rng", "client_update draws random numbers"),
        ("id", "client_update asks for client.id"),
        ("numpy", "client_update draws random numbers"),
        ("torch", "torch.func.vmap fails"),
        ("branch", "torch.func.vmap fails"),
    ],
)
def test_what_differs_between_clients_is_refused(what, why):
    with pytest.raises(fedgbo.ConfigError, match=f"engine vmap cannot train this: {why}"):
        engine_for(make_task(), Drawing(fedgbo.SGD(0.1), what=what), 0, engine="vmap")


@dataclass(frozen=True)
class BySamples(fedgbo.FedAvg):
    """Scales the upload by the client's number of samples."""

    def client_update(self, down, client):
        return fedgbo.State(super().client_update(down, client).params / client.samples)


def test_clients_are_grouped_by_size_where_it_matters():
    algorithm = BySamples(fedgbo.SGD(0.1))
    task = images((6, 9, 6, 9, 5))
    assert_close(run(task, algorithm, engine="vmap"), run(task, algorithm, engine="plain"))


@pytest.mark.parametrize(
    ("layer", "why"),
    [(nn.Dropout(0.5), "the model or the data draw random"), (nn.BatchNorm1d(16), "training changes buffers")],
)
def test_models_that_cannot_be_stacked_are_refused(layer, why):
    task = images(model=lambda: nn.Sequential(nn.Flatten(), layer, nn.Linear(16, 3)))
    with pytest.raises(fedgbo.ConfigError, match=f"engine vmap cannot train this: {why}"):
        engine_for(task, EXAMPLES["fedavg"], 0, engine="vmap")
    with pytest.raises(fedgbo.ConfigError, match="there is only one client per round"):
        engine_for(images(clients_per_round=1), EXAMPLES["fedavg"], 0, engine="vmap")


def test_the_choice_is_explained(monkeypatch):
    engine = engine_for(images(), EXAMPLES["fedavg"], 0, engine="vmap")
    assert "many clients at a time, client_update once for up to" in explain(engine)
    monkeypatch.setattr(cohort, "ROOM", 1)
    assert "up to 2 clients" in explain(engine_for(images(), EXAMPLES["fedavg"], 0, engine="vmap"))


class Fragile(Texts):
    """Fails on purpose."""

    broken = False

    def batch(self, rows, rng=None):
        if self.broken:
            raise fedgbo.DataError("the file is gone")
        return super().batch(rows, rng)


def test_a_failure_names_the_group_and_the_round():
    data = fedgbo.FederatedData(Fragile(12), np.array([0, 4, 8, 12]), Texts(5))
    model = lambda: nn.Sequential(nn.EmbeddingBag(8, 4, padding_idx=0), nn.Linear(4, 2))  # noqa: E731
    engine = engine_for(fedgbo.Task("texts", data, model, batch_size=3), EXAMPLES["fedavg"], 0, engine="vmap")
    data.train.broken = True
    with pytest.raises(fedgbo.DataError, match="clients 0 to 2 in round 1: the file is gone"):
        train(engine, EXAMPLES["fedavg"], [0, 1, 2], [1, 1, 1])


def test_metrics_change_no_bit():
    measured = run(images(), EXAMPLES["fedavg"], engine="vmap", metrics="cosine")
    assert torch.equal(measured.params, run(images(), EXAMPLES["fedavg"], engine="vmap").params)
    assert measured.history[-1].drift["cosine"] > 0
