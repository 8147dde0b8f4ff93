"""The odd client: two halves of a batch give the batch's gradient, whoever computes them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines import serial
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.halves import in_turn, splits, whole
from fedgbo.engines.parallel import ParallelEngine
from fedgbo.engines.serial import SerialEngine
from tests.algorithms.test_identities import example
from tests.conftest import make_task


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 4))


def batch(size=21):
    torch.manual_seed(1)
    return torch.randn(size, 1, 8, 8), torch.randint(4, (size,))


@pytest.mark.parametrize("fast", [True, False])
def test_two_halves_make_a_whole(fast):
    model = FlatModel(cnn(), functional.cross_entropy)
    if fast:
        model.specialise(batch()[0], ())
    loss = whole(model, batch(), ())
    grad = model.flat_gradient()
    assert torch.allclose(in_turn(model, batch(), ()), loss)
    assert torch.allclose(model.flat_gradient(), grad, atol=1e-6)
    assert splits(model, batch())
    assert not splits(model, batch(15))


def test_samples_that_see_each_other_are_not_split():
    norm = nn.BatchNorm2d(32, track_running_stats=False)
    model = FlatModel(nn.Sequential(*list(cnn())[:1], norm, *list(cnn())[1:]), functional.cross_entropy)
    assert not splits(model, batch())
    loss = FlatModel(cnn(), lambda out, y: functional.cross_entropy(out, y, reduction="sum"))
    assert not splits(loss, batch())


def image_task(clients=5, cohort=5):
    torch.manual_seed(0)
    train = [(torch.randn(24, 1, 8, 8), torch.randint(4, (24,))) for _ in range(clients)]
    data = fedgbo.FederatedData.from_clients(train=train, test=batch())
    return fedgbo.Task("images", data, cnn, clients_per_round=cohort, batch_size=16)


@pytest.mark.parametrize("name", ["fedavg", "fedgbo", "fedmax", "fedprox", "mfl", "mimelite"])
def test_the_odd_client_gives_the_same_bits_for_any_number_of_workers(name, monkeypatch):
    monkeypatch.setattr(serial, "WORTH_SPLITTING", 0)
    task, algorithm = image_task(), example(name)
    plain = SerialEngine(task, algorithm, seed=0)
    assert plain.splits
    down = algorithm.broadcast(algorithm.init(plain.initial_params))
    work = ([0, 1, 2, 3, 4], [3] * 5, 1)
    expected = plain.train(algorithm, down, *work, odd=4)
    other = plain.train(algorithm, down, *work)
    assert torch.allclose(expected.mean.params, other.mean.params, atol=1e-6)
    for workers in (2, 3):
        engine = ParallelEngine(SerialEngine(task, algorithm, seed=0), algorithm, workers)
        for _ in range(3):
            got = engine.train(algorithm, down, *work, odd=4)
            assert got.loss == expected.loss
            for key, value in expected.mean.tensors().items():
                assert torch.equal(got.mean.tensors()[key], value)


def test_only_odd_cohorts_of_large_batches_are_split(monkeypatch):
    algorithm = fedgbo.FedAvg(fedgbo.SGD(0.1))
    assert not SerialEngine(image_task(), algorithm, 0).splits  # too small to be worth it
    monkeypatch.setattr(serial, "WORTH_SPLITTING", 0)
    assert SerialEngine(image_task(), algorithm, 0).splits
    assert not SerialEngine(image_task(cohort=4), algorithm, 0).splits
    noisy = make_task(
        clients=3,
        batch_size=16,
        samples=16,
        model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2)),
    )
    assert not SerialEngine(noisy, algorithm, 0).splits


def test_an_error_in_a_half_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(serial, "WORTH_SPLITTING", 0)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(0.1))
    engine = ParallelEngine(SerialEngine(image_task(), algorithm, 0), algorithm, 2)
    broken = fedgbo.State(torch.full_like(engine.initial_params, torch.nan))
    with pytest.raises(fedgbo.DivergenceError):
        engine.train(algorithm, broken, [0], [2], 0, odd=0)
    assert engine.train(algorithm, fedgbo.State(engine.initial_params), [0], [2], 0, odd=0).loss > 0
