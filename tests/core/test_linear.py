from dataclasses import dataclass

import pytest
import torch

import fedgbo
from fedgbo.core.linear import factors_of, is_settled, linear
from fedgbo.core.state import State
from tests.runs.test_server_step import Clipped, Normed

SGD, SGDM = fedgbo.SGD(0.1), fedgbo.SGDm(0.1, 0.9)


@pytest.mark.parametrize(
    ("algorithm", "mean_stats"),
    [
        (fedgbo.FedAvg(SGD), ()),
        (fedgbo.FedGBO(SGDM), ()),
        (fedgbo.FedGBO(SGDM, inverse=False), ("gradient",)),
        (fedgbo.AdaptiveFedOpt(SGD, SGDM), ()),
        (fedgbo.MFL(SGDM), ("m",)),
    ],
    ids=str,
)
def test_the_sums_are_the_servers_step(algorithm, mean_stats):
    random = torch.Generator().manual_seed(3)
    stats = tuple(algorithm.init(torch.zeros(1)).stats)
    vectors = torch.randn(2 + len(stats) + len(mean_stats), 50, generator=random, dtype=torch.float64)
    own = 1 + len(stats)
    server = State(vectors[0], dict(zip(stats, vectors[1:own], strict=True)))
    mean = State(vectors[own], dict(zip(mean_stats, vectors[own + 1 :], strict=True)))
    after = algorithm.server_update(server, mean, 7.5)
    sums = linear(algorithm, stats, mean_stats, 7.5, 50)
    assert sums.stats == tuple(after.stats)
    for factors, expected in zip(sums.factors, [after.params, *after.stats.values()], strict=True):
        assert torch.allclose(factors @ vectors, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        fedgbo.FedGBO(fedgbo.RMSProp(0.1, 0.9)),
        fedgbo.AdaptiveFedOpt(SGD, fedgbo.Adam(0.1, 0.9)),
        fedgbo.FedGBO(Normed(0.1, 0.9)),
        Clipped(SGD),
    ],
    ids=str,
)
def test_steps_that_are_not_sums_are_found_out(algorithm):
    assert linear(algorithm, tuple(algorithm.init(torch.zeros(1)).stats), (), 10.0, 50) is None


@pytest.mark.parametrize(
    "formula",
    [
        lambda x, d: x - d.clamp(-1e6, 1e6),
        lambda x, d: x - torch.where(d.abs() < 1e-6, 0.0, d),
        lambda x, d: x - d + 1e-3,
        lambda x, d: x - d * (1 + 1e-9 * x.tanh()),
        lambda x, d: x - d + torch.randn_like(d),
        lambda x, d: (x - d).float().double(),
        lambda x, d: x - d + torch.arange(50.0),
        lambda x, d: x - d * (torch.arange(len(d)) < 40),  # the last places are left alone
        lambda x, d: x - d * (torch.arange(len(d)) > 1),  # and the first
        lambda x, d: (x - d)[:40],
        lambda x, d: (x - d).float(),
        lambda x, d: x @ d,
        lambda x, d: x * torch.nan,
        lambda x, d: x / d,
    ],
)
def test_formulas_that_only_look_linear_give_themselves_away(formula):
    assert factors_of(lambda vectors: [vectors[0] - vectors[1]], 2, 50).tolist() == [[1.0, -1.0]]
    assert factors_of(lambda vectors: [formula(*vectors)], 2, 50) is None


def test_a_formula_that_draws_noise_leaves_the_generator_as_it_was():
    torch.manual_seed(1)
    assert factors_of(lambda vectors: [vectors[0] + torch.randn_like(vectors[0])], 1, 50) is None
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)


def test_a_formula_that_writes_into_its_vectors_spoils_nothing():
    for _ in range(2):
        assert factors_of(lambda vectors: [vectors[0].mul_(2)], 1, 50).tolist() == [[2.0]]


@dataclass(frozen=True)
class Half(fedgbo.FedAvg):
    """A server step of its own, that says what it is."""

    elementwise = True

    def server_update(self, server, mean, steps):
        return State(server.params - mean.params / 2)


class Adaptive(Half):
    """Has more to it than its settings."""

    elementwise = True

    def __init__(self, optimiser):
        super().__init__(optimiser)
        self.part = 2.0

    def server_update(self, server, mean, steps):
        return State(server.params - mean.params / self.part)


@dataclass
class Changeable(fedgbo.Optimiser):
    """May have another rate in the next round."""

    lr: float
    elementwise = True

    def update(self, params, stats, grad):
        return params - self.lr * grad


@dataclass(frozen=True)
class Rated(Half):
    """Its setting is an object that may change."""

    rate: object = None


def test_what_may_do_something_else_next_time_is_not_looked_into():
    assert is_settled(Half(SGD))
    assert linear(Adaptive(SGD), (), (), 10.0, 50) is None
    assert not is_settled(Changeable(0.1))
    assert not is_settled(fedgbo.FedGBO(Changeable(0.1)))
    assert not is_settled(fedgbo.FedAvg(SGD, objective=[]))
    assert is_settled(fedgbo.FedAvg(SGD, objective=(fedgbo.Proximal(0.1), fedgbo.MaxEntropy(1.0))))
    for rate in (object(), torch.ones(1), len, ([],), {}):
        assert not is_settled(Rated(SGD, rate))


def test_by_hand():
    assert linear(Half(SGD), (), (), 10.0, 50).factors.tolist() == [[1.0, -0.5]]
    halved = fedgbo.FedGBO(fedgbo.SGDm(0.5, 0.5), inverse=False)
    assert linear(halved, ("m",), ("gradient",), 4.0, 50).factors.tolist() == [
        [1.0, 0.0, -1.0, 0.0],
        [0.0, 0.5, 0.0, 0.125],
    ]
