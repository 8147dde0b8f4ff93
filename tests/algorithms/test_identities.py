"""What must be equal to what, and how algorithms combine."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from fedgbo.engines.plain import PlainEngine
from tests.conftest import make_task
from tests.examples import AFFINE, OPTIMISERS
from tests.examples import ALGORITHMS as EXAMPLES

SGD = fedgbo.SGD(lr=0.2)
MINIBATCHES = make_task(batch_size=5, clients_per_round=3, dtype=torch.float64)


def params(task, algorithm, **kwargs):
    return fedgbo.run(task, algorithm, **({"rounds": 4, "local_steps": 3} | kwargs)).params


@pytest.mark.parametrize(
    "same",
    [
        fedgbo.FedGBO(SGD),
        fedgbo.FedGBO(fedgbo.SGDm(lr=0.2, beta=0.0)),
        fedgbo.FedProx(SGD, mu=0.0),
        fedgbo.FedMAX(SGD, beta=0.0),
        fedgbo.AdaptiveFedOpt(client=SGD, server=fedgbo.SGD(lr=1.0)),
        fedgbo.MFL(SGD),
        fedgbo.MFL(fedgbo.SGDm(lr=0.2, beta=0.0)),
        fedgbo.Mimelite(SGD),
        fedgbo.FedCM(SGD, alpha=1.0),
        fedgbo.FedSAM(SGD, rho=0.0),
        fedgbo.FedNova(SGD),
        fedgbo.GHBM(SGD, beta=0.0, tau=2),
        fedgbo.FedAvgM(SGD, fedgbo.SGDm(lr=1.0, beta=0.0)),
        fedgbo.APFL(SGD, alpha=0.5),
        fedgbo.Ditto(SGD, lam=0.5),
        fedgbo.QFedAvg(SGD, q=0.0),
        fedgbo.FedGBO(SGD, objective=fedgbo.SharpnessAware(0.0)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_is_fedavg(same):
    expected = params(MINIBATCHES, fedgbo.FedAvg(SGD))
    assert torch.allclose(params(MINIBATCHES, same), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=lambda optimiser: type(optimiser).__name__)
def test_one_step_on_one_client_is_the_centralised_optimiser(optimiser):
    task = make_task(clients=1, dtype=torch.float64)
    result = fedgbo.run(task, fedgbo.FedGBO(optimiser), rounds=6, local_steps=1)
    engine = PlainEngine(task, fedgbo.FedGBO(optimiser), seed=0)
    x = engine.origin.params
    s = optimiser.init(x)
    batch = (task.data.train.inputs.double(), task.data.train.targets)
    for _ in range(6):
        g, _ = engine.model.gradient(x, batch)
        x, s = optimiser.update(x, s, g), optimiser.track(s, g)
    assert torch.allclose(result.params, x, rtol=1e-9, atol=1e-12)
    for key in s:
        assert torch.allclose(result.state.stats[key], s[key], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("local_steps", [3, [1, 5, 2, 4], lambda t, client: 1 + (t + client) % 3])
@pytest.mark.parametrize("optimiser", [OPTIMISERS[name] for name in AFFINE], ids=lambda o: type(o).__name__)
def test_sending_gradients_instead_of_inverting_gives_the_same_trajectory(optimiser, local_steps):
    inverted = fedgbo.run(MINIBATCHES, fedgbo.FedGBO(optimiser), rounds=5, local_steps=local_steps)
    sent = fedgbo.run(MINIBATCHES, fedgbo.FedGBO(optimiser, inverse=False), rounds=5, local_steps=local_steps)
    assert torch.allclose(inverted.params, sent.params, rtol=1e-8, atol=1e-11)
    for key in inverted.state.stats:
        assert torch.allclose(inverted.state.stats[key], sent.state.stats[key], rtol=1e-7, atol=1e-11)
    assert sent.history[-1].upload_bytes == 2 * inverted.history[-1].upload_bytes


@dataclass(frozen=True)
class SignMomentum(fedgbo.Optimiser):
    """An optimiser whose update has no inverse."""

    lr: float

    def init(self, params):
        return {"m": torch.zeros_like(params)}

    def update(self, params, stats, grad):
        return params - self.lr * torch.sign(0.9 * stats["m"] + 0.1 * grad)

    def track(self, stats, grad):
        return {"m": 0.9 * stats["m"] + 0.1 * grad}


def test_an_optimiser_without_inverse_works_with_fedgbo():
    algorithm = fedgbo.FedGBO(SignMomentum(lr=0.01))
    result = fedgbo.run(MINIBATCHES, algorithm, rounds=20, local_steps=4)
    assert not algorithm.inverts
    assert result.history[-1].train_loss < result.history[1].train_loss
    with pytest.raises(fedgbo.ConfigError, match="SignMomentum has no inverse step"):
        fedgbo.run(MINIBATCHES, fedgbo.FedGBO(SignMomentum(lr=0.01), inverse=True), rounds=1)


def test_objective_terms_compose_with_every_algorithm():
    """FedGBO with SGD and FedMAX's term is FedMAX; FedAvg with FedProx's term is FedProx; terms add up."""
    task = MINIBATCHES
    fedmax = params(task, fedgbo.FedMAX(SGD, beta=1.5))
    assert torch.allclose(params(task, fedgbo.FedGBO(SGD, objective=fedgbo.MaxEntropy(1.5))), fedmax, rtol=1e-9)
    fedprox = params(task, fedgbo.FedProx(SGD, mu=0.3))
    assert torch.allclose(params(task, fedgbo.Mimelite(SGD, objective=fedgbo.Proximal(0.3))), fedprox, rtol=1e-9)
    both = params(task, fedgbo.FedMAX(SGD, beta=1.5, objective=fedgbo.Proximal(0.3)))
    also = params(task, fedgbo.FedAvg(SGD, objective=[fedgbo.Proximal(0.3), fedgbo.MaxEntropy(1.5)]))
    assert torch.allclose(both, also, rtol=1e-12)
    assert not torch.allclose(both, fedmax, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_terms_change_every_algorithm(name):
    plain, algorithm = params(MINIBATCHES, EXAMPLES[name]), EXAMPLES[name]
    for term in (fedgbo.Proximal(5.0), fedgbo.MaxEntropy(5.0)):
        changed = type(algorithm)(**{**vars(algorithm), "objective": term})
        assert not torch.allclose(params(MINIBATCHES, changed), plain, rtol=1e-4)


def test_max_entropy_by_hand():
    hidden = torch.tensor([[0.0, np.log(3.0)]], dtype=torch.float64)  # softmax: 1/4, 3/4
    expected = 2.0 * (0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75))
    assert fedgbo.MaxEntropy(2.0).loss(hidden).item() == pytest.approx(expected)


def test_schedules_are_followed_and_inverted_with_the_rounds_own_lr():
    lr = fedgbo.Step(0.4, every=2, factor=0.5)
    result = fedgbo.run(MINIBATCHES, fedgbo.FedGBO(fedgbo.SGDm(lr=lr, beta=0.9)), rounds=4, local_steps=3)
    half = fedgbo.run(MINIBATCHES, fedgbo.FedGBO(fedgbo.SGDm(lr=0.4, beta=0.9)), rounds=2, local_steps=3)
    sent = fedgbo.run(MINIBATCHES, fedgbo.FedGBO(fedgbo.SGDm(lr, 0.9), inverse=False), rounds=4, local_steps=3)
    assert result.history[2].loss == half.history[2].loss
    assert torch.allclose(result.params, sent.params, rtol=1e-9)
    constant = params(MINIBATCHES, fedgbo.FedGBO(fedgbo.SGDm(lr=0.4, beta=0.9)))
    assert not torch.allclose(result.params, constant, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.FedGBO("sgdm"), "FedGBO: optimiser must be an optimiser such as"),
        (lambda: fedgbo.FedGBO(fedgbo.SGDm), "FedGBO: optimiser must be an optimiser such as"),
        (lambda: fedgbo.FedAvg(fedgbo.SGDm(0.1, 0.9)), r"FedAvg: optimiser must be SGD\(lr=...\)"),
        (lambda: fedgbo.AdaptiveFedOpt(client=fedgbo.Adam(0.1, 0.9), server=SGD), "client must be SGD"),
        (lambda: fedgbo.FedProx(SGD, mu=-1), "mu must be a finite number of at least 0"),
        (lambda: fedgbo.FedMAX(SGD, beta=-1), "beta must be a finite number of at least 0"),
        (lambda: fedgbo.FedAvg(SGD, objective="prox"), "objective takes terms"),
    ],
)
def test_bad_algorithms(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(3, 2), "needs a hidden layer"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), "needs a hidden layer"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), "must be nn.Linear; here it is LayerNorm"),
    ],
)
def test_fedmax_needs_a_hidden_layer_before_a_linear(model, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(make_task(model=model), fedgbo.FedMAX(SGD, beta=1.0), rounds=1)
