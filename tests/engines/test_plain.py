import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines.batches import minibatches
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.serial import SerialEngine, SimulatedClient, Work
from tests.conftest import make_task

SGD = fedgbo.SGD(lr=0.1)
AVG = fedgbo.FedAvg(SGD)


def test_gradients_are_autograds_own_in_the_order_of_parameters():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    x, y = torch.randn(5, 1, 6, 6), torch.randint(3, (5,))
    loss = functional.cross_entropy(module(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    model = FlatModel(module, functional.cross_entropy)
    grad, value = model.gradient(model.params.clone(), (x, y))
    assert torch.allclose(grad, expected, rtol=1e-6)
    assert value == loss.detach()
    again, _ = model.gradient(model.params.clone(), (x, y))
    assert torch.equal(grad, again)
    assert grad.data_ptr() != again.data_ptr()


def test_frozen_parameters_stay():
    def build():
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        module[0].requires_grad_(False)
        return module

    result = fedgbo.run(make_task(model=build), fedgbo.FedGBO(fedgbo.SGDm(0.5, 0.9)), rounds=3)
    start = SerialEngine(make_task(model=build), AVG, 0).initial_params
    assert torch.equal(result.params[:16], start[:16])
    assert not torch.equal(result.params[16:], start[16:])


def test_a_full_gradient_is_the_mean_over_all_samples_in_chunks(monkeypatch):
    task = make_task(samples=11, dtype=torch.float64)
    engine = SerialEngine(task, AVG, 0)
    down = AVG.init(engine.initial_params)
    whole = SimulatedClient(engine, engine.model, Work(AVG, down, 0), 1, 1).full_gradient(down.params)
    monkeypatch.setattr("fedgbo.engines.serial.CHUNK", 4)
    client = SimulatedClient(engine, engine.model, Work(AVG, down, 0), 1, 1)
    assert torch.allclose(client.full_gradient(down.params), whole, rtol=1e-12)
    assert client.samples == 11


def test_minibatches_walk_all_samples_then_wrap_round_reshuffled():
    batches = minibatches(5, 2, 0, 0, 0)
    walk = np.concatenate([next(batches) for _ in range(5)])
    assert sorted(walk[:5]) == sorted(walk[5:]) == list(range(5))
    assert list(walk[:5]) != list(walk[5:])


def test_a_small_client_repeats_samples():
    batch = next(minibatches(3, 8, 0, 0, 0))
    assert len(batch) == 8
    assert np.bincount(batch).min() >= 2


def test_batches_depend_on_round_and_client_only():
    """The same local batches whatever the algorithm, the cohort or the order: paired comparisons are paired."""
    task = make_task(batch_size=4)
    engine = SerialEngine(task, AVG, 0)
    down = AVG.init(engine.initial_params)

    def first_gradient(client, t, warm_up):
        for other in warm_up:
            SimulatedClient(engine, engine.model, Work(AVG, down, t), other, 1).gradient(down.params)
        return SimulatedClient(engine, engine.model, Work(AVG, down, t), client, 1).gradient(down.params)

    assert torch.equal(first_gradient(2, 0, []), first_gradient(2, 0, [0, 1, 3]))
    assert not torch.equal(first_gradient(2, 0, []), first_gradient(2, 1, []))


def test_dropout_is_seeded_and_leaves_torchs_own_generator_alone():
    task = make_task(model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = fedgbo.run(task, AVG, rounds=3).params
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(fedgbo.run(task, AVG, rounds=3).params, first)
    assert not torch.equal(fedgbo.run(task, AVG, rounds=3, seed=1).params, first)


def test_regression_with_a_loss_of_ones_own():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = (x @ [[1.0], [-2.0], [0.5]]) + 0.3
    data = fedgbo.FederatedData.from_clients(train=[(x[:20], y[:20]), (x[20:], y[20:])], test=(x, y))
    task = fedgbo.Task("line", data, lambda: nn.Linear(3, 1), batch_size=None, loss=functional.mse_loss)
    result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.2, beta=0.5)), rounds=60)
    assert result.accuracy is None
    assert result.loss < 1e-6
    assert result.best.loss == min(record.loss for record in result.history)
    assert result.params.tolist() == pytest.approx([1.0, -2.0, 0.5, 0.3], abs=1e-2)


def data_of(y, x=None):
    x = np.zeros((len(y), 3)) if x is None else x
    return fedgbo.FederatedData.from_clients(train=[(x, y)], test=(x, y))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda: fedgbo.Task("t", data_of([0, 5]), lambda: nn.Linear(3, 2)), "labels go from 0 to 5.*has 2 outputs"),
        (lambda: fedgbo.Task("t", data_of([0, -1]), lambda: nn.Linear(3, 2)), "labels go from -1 to 0"),
        (lambda: fedgbo.Task("t", data_of([0.0, 1.0]), lambda: nn.Linear(3, 2)), "targets are not whole numbers"),
        (lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Linear(4, 2)), "the model fails on a batch of inputs"),
        (lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Flatten(0)), "has no parameters to train"),
        (
            lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))),
            "must return one row for each sample",
        ),
        (
            lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (2, 1)))),
            r"must return \(samples, classes\)",
        ),
        (
            lambda: fedgbo.Task("t", data_of([0.5, 1.0]), lambda: nn.Linear(3, 1), loss=functional.mse_loss),
            "would be broadcast",
        ),
        (
            lambda: fedgbo.Task(
                "t",
                data_of([0, 1]),
                lambda: nn.Linear(3, 2),
                loss=lambda o, t: functional.cross_entropy(o, t, reduction="none"),
            ),
            "the loss must return one number",
        ),
        (
            lambda: fedgbo.Task(
                "t", data_of([0, 1]), lambda: nn.Linear(3, 2), loss=lambda o, t: functional.nll_loss(o, t[:1])
            ),
            "the loss fails on outputs",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_data(task, message):
    with pytest.raises((fedgbo.DataError, fedgbo.ConfigError), match=message):
        fedgbo.run(task(), AVG, rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_task(clients_per_round=5), "clients_per_round is 5, but there are 4 clients"),
        (lambda: make_task(clients_per_round=0), "clients_per_round must be a whole number"),
        (lambda: make_task(batch_size=0), "batch_size must be a whole number"),
        (lambda: make_task(model=nn.Linear(3, 2)), "model must be a function that builds the model"),
        (lambda: fedgbo.Task("t", [1, 2], lambda: nn.Linear(3, 2)), "data must be FederatedData"),
        (
            lambda: fedgbo.run(
                make_task(model=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))), AVG, rounds=1
            ),
            "'0' .BatchNorm1d. keeps running statistics",
        ),
        (
            lambda: fedgbo.run(
                make_task(model=lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double())), AVG, rounds=1
            ),
            "must all be of one floating type",
        ),
    ],
)
def test_tasks_that_cannot_be(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()
