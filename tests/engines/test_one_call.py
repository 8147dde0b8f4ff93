"""All local steps of a client in one call against the textbook loop, on every kind of samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core import AffineStep
from fedgbo.data.images import ImageSamples
from fedgbo.data.samples import TensorSamples
from fedgbo.engines import one_call
from fedgbo.engines.one_call import OneCall
from fedgbo.engines.select import engine_for
from fedgbo.engines.threads import ThreadedEngine
from fedgbo.native import library
from fedgbo.tasks import TASKS
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C code here")


def run(task, algorithm, **settings):
    return fedgbo.run(task, algorithm, rounds=3, local_steps=4, **settings)


def assert_close(found, expected):
    assert torch.allclose(found.params, expected.params, rtol=1e-4, atol=1e-5)
    ours, theirs = found.history[-1], expected.history[-1]
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-5)
    assert ours.flops == theirs.flops


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_algorithm_is_as_in_the_textbook(name):
    task = replace(TASKS["digits"](), clients_per_round=3)
    assert_close(run(task, EXAMPLES[name]), run(task, EXAMPLES[name], engine="plain"))


@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_and_types(batch_size, dtype):
    task = make_task(clients=5, samples=7, batch_size=batch_size, dtype=dtype)
    assert_close(run(task, EXAMPLES["fedgbo"]), run(task, EXAMPLES["fedgbo"], engine="plain"))


def test_mean_squared_error():
    random = np.random.default_rng(0)
    pairs = [(random.normal(size=(6, 3)).astype("f4"), random.normal(size=(6, 2)).astype("f4")) for _ in range(4)]
    data = fedgbo.FederatedData.from_clients(train=pairs[:3], test=pairs[3])
    task = fedgbo.Task("lines", data, lambda: nn.Linear(3, 2), batch_size=4, loss=functional.mse_loss)
    assert type(engine_for(task, EXAMPLES["fedavg"], 0).descent) is OneCall
    assert_close(run(task, EXAMPLES["fedavg"]), run(task, EXAMPLES["fedavg"], engine="plain"))


def augmented():
    """Images that are flipped and cropped at random: the C code gets minibatches that Python made."""
    random = np.random.default_rng(0)

    def samples(count, **options):
        images = random.integers(256, size=(count, 1, 8, 8), dtype=np.uint8)
        return ImageSamples(images, random.integers(3, size=count, dtype=np.uint8), crop=8, **options)

    data = fedgbo.FederatedData(samples(30, flip=True, padding=1), np.array([0, 10, 20, 30]), samples(5))
    model = lambda: nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(320, 3))  # noqa: E731
    return fedgbo.Task("augmented", data, model, batch_size=4)


@pytest.mark.parametrize("room", [1, 2 * 4 * 64 * 4, 2**20])  # one minibatch at a time, two, all
def test_random_minibatches_are_those_of_the_textbook(monkeypatch, room):
    monkeypatch.setattr(one_call, "ROOM", room)
    assert type(engine_for(augmented(), EXAMPLES["fedgbo"], 0).descent) is OneCall
    assert_close(run(augmented(), EXAMPLES["fedgbo"]), run(augmented(), EXAMPLES["fedgbo"], engine="plain"))


@pytest.mark.parametrize("task", [augmented, lambda: make_task(clients=7, batch_size=4)])
def test_the_number_of_workers_changes_no_bit(monkeypatch, task):
    monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    assert type(engine_for(task(), EXAMPLES["fedgbo"], 0, 2)) is ThreadedEngine
    runs = [run(task(), EXAMPLES["fedgbo"], workers=workers) for workers in (1, 2, 3)]
    assert all(torch.equal(other.params, runs[0].params) for other in runs[1:])


def dropping(task, dtype=torch.float64):
    """The task with dropout in its model; the C code gathers the samples itself if they are of the model's type."""
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).to(dtype)  # noqa: E731
    return replace(task, model=build)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXAMPLES)
def test_dropout_is_that_of_the_textbook(name, dtype):
    task = dropping(make_task(clients=5, samples=9, batch_size=4, clients_per_round=3), dtype)
    assert isinstance(engine_for(task, EXAMPLES["fedavg"], 0).descent, OneCall)
    assert_close(run(task, EXAMPLES[name]), run(task, EXAMPLES[name], engine="plain"))


@pytest.mark.parametrize("name", ["fedgbo", "fedsam", "mimexlite"])
def test_dropout_with_threads_changes_no_bit(name, monkeypatch):
    monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    task = dropping(make_task(clients=7, batch_size=4))
    assert type(engine_for(task, EXAMPLES[name], 0, 2)) is ThreadedEngine
    runs = [run(task, EXAMPLES[name], workers=workers) for workers in (1, 2, 3)]
    assert all(torch.equal(other.params, runs[0].params) for other in runs[1:])


class Again(fedgbo.FedAvg):
    """Takes the gradient of the last minibatch again, with the random numbers that it had."""

    def client_update(self, down, client):
        y = client.descend(down.params, self.optimiser, {})
        return fedgbo.State(down.params - y + client.gradient(y, again=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_minibatch_again_with_its_dropout(dtype):
    task = dropping(make_task(clients=5, samples=9, batch_size=4), dtype)
    algorithm = Again(fedgbo.SGD(0.1))
    assert_close(run(task, algorithm), run(task, algorithm, engine="plain"))


class NoisySamples(TensorSamples):
    """Adds noise from torch's process-wide generator, from which dropout draws as well."""

    def batch(self, rows, rng=None):
        inputs, targets = super().batch(rows, rng)
        return (inputs if rng is None else inputs + torch.randn(inputs.shape)), targets


def test_data_and_dropout_that_draw_from_one_generator():
    task = dropping(make_task(clients=5, samples=9, batch_size=4), torch.float32)
    train = task.data.train
    task = replace(task, data=replace(task.data, train=NoisySamples(train.inputs, train.targets)))
    assert_close(run(task, EXAMPLES["fedgbo"]), run(task, EXAMPLES["fedgbo"], engine="plain"))


def test_after_a_nan_the_next_client_is_sound():
    """Zeros that fill up vectors must not keep a NaN from the call before."""
    task = make_task(clients=2, batch_size=4)
    engine = engine_for(task, EXAMPLES["fedavg"], 0)
    network, (inputs, targets) = engine.model.network, engine.sample
    step, rows = AffineStep(0.0, 0.1), np.arange(2)

    def trained(params):
        y = params.clone()
        network.descend(y, (inputs, targets, rows), 1, step, (), params)
        return y

    first = trained(engine.origin.params)
    assert torch.isnan(trained(torch.full_like(engine.origin.params, torch.nan))).all()
    assert torch.equal(trained(engine.origin.params), first)


def test_fedmax_is_trained_in_one_call_and_its_flops_are_counted():
    """Its term keeps the hidden layer by a hook; the model is copied, hook and all, to count its operations."""
    task, algorithm = make_task(clients=2, batch_size=4), EXAMPLES["fedmax"]
    engine = engine_for(task, algorithm, 0)
    assert isinstance(engine.descent, OneCall)
    assert run(task, algorithm).history[-1].flops > 0
