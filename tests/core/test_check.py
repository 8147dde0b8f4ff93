"""fedgbo.check finds wrong formulas, and finds nothing wrong with ours."""

from dataclasses import dataclass

import pytest
import torch

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from tests.conftest import make_task
from tests.examples import AFFINE, OPTIMISERS
from tests.examples import ALGORITHMS as EXAMPLES


@pytest.mark.parametrize("name", OPTIMISERS)
def test_our_optimisers_pass(name):
    assert ("inverse for K = 1, 2, 5" in fedgbo.check(OPTIMISERS[name])) == (name in AFFINE)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_our_algorithms_pass(name):
    assert "the formulas are consistent" in fedgbo.check(EXAMPLES[name])


@pytest.mark.parametrize("lr", [1e-9, 1e-3, 1e3])
def test_any_rate_passes(lr):
    fedgbo.check(fedgbo.Adam(lr=lr, beta1=0.9))


def test_a_schedule_has_its_first_value():
    fedgbo.check(fedgbo.FedGBO(fedgbo.SGDm(lr=fedgbo.Step(0.4, every=2), beta=0.9)))


@dataclass(frozen=True)
class Lion(fedgbo.Optimiser):
    """Not affine, and no inverse is asked for."""

    lr: float = 0.1

    def init(self, params):
        return {"m": torch.zeros_like(params)}

    def update(self, params, stats, grad):
        return params - self.lr * torch.sign(0.9 * stats["m"] + 0.1 * grad)

    def track(self, stats, grad):
        return {"m": 0.99 * stats["m"] + 0.01 * grad}


def test_an_optimiser_that_is_not_affine_passes():
    assert "inverse" not in fedgbo.check(Lion())
    fedgbo.check(fedgbo.FedGBO(Lion()))


@dataclass(frozen=True)
class Momentum(fedgbo.AffineOptimiser):
    """Right; the classes below break one formula each."""

    lr: float = 0.1

    def init(self, params):
        return {"m": torch.zeros_like(params)}

    def affine(self, stats):
        return self.lr * 0.9 * stats["m"], self.lr * 0.1

    def track(self, stats, grad):
        return {"m": 0.9 * stats["m"] + 0.1 * grad}


class WrongInverse(Momentum):
    def invert(self, stats, delta, steps):
        return delta / (self.lr * steps)


class ClippedUpdate(Momentum):
    def update(self, params, stats, grad):
        return super().update(params, stats, grad.clamp(-0.1, 0.1))


class Decays(Momentum):
    def update(self, params, stats, grad):
        return super().update(0.99 * params, stats, grad)


class ZeroScale(Momentum):
    def affine(self, stats):
        return self.lr * stats["m"], 0.0


class NegativeScale(Momentum):
    def affine(self, stats):
        return self.lr * stats["m"], -self.lr


class OneValue(Momentum):
    def affine(self, stats):
        return self.lr * stats["m"]


class NumpyOffset(Momentum):
    def affine(self, stats):
        return stats["m"].numpy(), self.lr


class StepsAlone(Momentum):
    def step(self, params, stats, grad):
        return params


class ShortStatistic(Momentum):
    def init(self, params):
        return {"m": torch.zeros(3)}


class OtherNames(Momentum):
    def track(self, stats, grad):
        return {"m": grad, "v": grad}


class InPlace(Momentum):
    def track(self, stats, grad):
        stats["m"].mul_(0.9).add_(grad, alpha=0.1)
        return stats


class Infinite(Momentum):
    def affine(self, stats):
        return stats["m"] / 0, self.lr


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            WrongInverse,
            "WrongInverse.invert does not recover the mean gradient of K = 1 updates: at parameter 0 it gives",
        ),
        (ClippedUpdate, "ClippedUpdate.update does not agree with affine"),
        (Decays, "Decays.update does not agree with affine"),
        (ZeroScale, "affine's b must be above 0"),
        (NegativeScale, "affine's b must be above 0"),
        (OneValue, r"OneValue.affine must return the pair \(a, b\), not Tensor"),
        (NumpyOffset, "affine's a must be a vector or a number, not ndarray"),
        (StepsAlone, "StepsAlone.step must return the parameters and the statistics, not Tensor"),
        (ShortStatistic, r"ShortStatistic.init's m must be a vector as long as the model \(7 here\), not \(3,\)"),
        (OtherNames, r"OtherNames.track returns \['m', 'v'\], but init returns \['m'\]"),
        (InPlace, "InPlace.track writes into its arguments"),
        (Infinite, "affine's a is not finite"),
    ],
)
def test_wrong_optimisers_are_found_also_inside_an_algorithm(kind, message):
    fedgbo.check(Momentum())
    for thing in (kind(), fedgbo.FedGBO(kind())):
        with pytest.raises(fedgbo.ConfigError, match=message):
            fedgbo.check(thing)


@pytest.mark.parametrize("kind", [WrongInverse, ClippedUpdate, Decays, ShortStatistic])
def test_a_run_refuses_a_wrong_optimiser_of_the_users_own(kind):
    fedgbo.run(make_task(), fedgbo.FedGBO(Momentum()), rounds=1)
    with pytest.raises(fedgbo.ConfigError, match=kind.__name__):
        fedgbo.run(make_task(), fedgbo.FedGBO(kind()), rounds=1)


@dataclass(frozen=True)
class ByLayer(fedgbo.AffineOptimiser):
    """Divides each layer's rate by its norm, and so knows the model's length."""

    sizes: tuple

    def affine(self, stats):
        return 0.0, torch.cat([torch.full((n,), 0.1 / n, dtype=torch.float64) for n in self.sizes])


def test_an_optimiser_for_one_model_is_checked_with_that_model():
    task = make_task(dtype=torch.float64)
    sizes = tuple(p.numel() for p in task.model().parameters())
    fedgbo.run(task, fedgbo.FedGBO(ByLayer(sizes)), rounds=1)
    fedgbo.check(ByLayer((3, 4)), torch.zeros(7))


SGD = fedgbo.SGD(0.1)


@dataclass(frozen=True)
class Random(fedgbo.FedAvg):
    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params + torch.rand(len(up.params)))


@dataclass(frozen=True)
class Reproducible(fedgbo.FedAvg):
    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params + torch.from_numpy(client.rng.normal(size=len(up.params))))


@dataclass(frozen=True)
class Truncates(fedgbo.FedAvg):
    def client_update(self, down, client):
        return fedgbo.State(super().client_update(down, client).params[:3])


@dataclass(frozen=True)
class LosesStatistics(fedgbo.FedGBO):
    def server_update(self, server, mean, steps):
        return fedgbo.State(server.params - mean.params)


@dataclass(frozen=True)
class Overwrites(fedgbo.FedAvg):
    def server_update(self, server, mean, steps):
        return fedgbo.State(server.params.sub_(mean.params))


@dataclass(frozen=True)
class ReturnsTensor(fedgbo.FedAvg):
    def server_update(self, server, mean, steps):
        return server.params - mean.params


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Random(SGD), "Random.client_update gives another upload for the same client, round and model"),
        (Truncates(SGD), "Truncates.client_update's params must be a vector as long as the model"),
        (LosesStatistics(fedgbo.SGDm(0.1, 0.9)), r"returns the statistics \[\], but init \['m'\]"),
        (Overwrites(SGD), "Overwrites.server_update writes into its arguments"),
        (ReturnsTensor(SGD), "ReturnsTensor.server_update must return a State, not Tensor"),
    ],
)
def test_wrong_algorithms_are_found(algorithm, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.check(algorithm)


def test_randomness_from_the_clients_stream_is_fine():
    fedgbo.check(Reproducible(SGD))


def test_other_things_are_refused():
    with pytest.raises(fedgbo.ConfigError, match="check takes an optimiser or an algorithm, not 'sgd'"):
        fedgbo.check("sgd")
