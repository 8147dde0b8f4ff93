from dataclasses import dataclass

import pytest
import torch

from fedgbo.algorithms import MFL, AdaptiveFedOpt, FedAvg, FedGBO, Mimelite
from fedgbo.core.elementwise import is_elementwise
from fedgbo.core.errors import DivergenceError
from fedgbo.core.state import State
from fedgbo.engines.layers.native import library
from fedgbo.engines.mean import WORTH_LOADING
from fedgbo.engines.serial import CohortResult
from fedgbo.optimisers import SGD, Adam, RMSProp, SGDm
from fedgbo.runs import server as servers
from fedgbo.runs.server import server_step

ADAM = Adam(lr=0.01, beta1=0.9, beta2=0.99, eps=1e-3)
ALGORITHMS = [
    FedAvg(SGD(0.1)),
    FedGBO(SGDm(0.1, 0.9)),
    FedGBO(RMSProp(0.1, 0.9, 1e-3)),
    FedGBO(ADAM),
    AdaptiveFedOpt(SGD(0.1), ADAM),
    AdaptiveFedOpt(SGD(0.1), SGDm(0.1, 0.9)),
    MFL(SGDm(0.1, 0.9)),
    Mimelite(ADAM),
]


@dataclass(frozen=True)
class Normed(SGDm):
    """Tracks the gradient over its norm: no number stands for itself."""

    def track(self, stats, grad):
        return super().track(stats, grad / grad.norm())


class Renamed(FedGBO):
    """The same formulas."""


class Clipped(FedAvg):
    """A server step with a norm in it."""

    def server_update(self, server, mean, steps):
        return State(server.params - mean.params / max(1.0, float(mean.params.norm())))


LONG = WORTH_LOADING + 77  # a vector that the C loop takes
native_only = pytest.mark.skipif(library() is None, reason="no C compiler here")


def sides(algorithm, length=1000, kind=torch.float32):
    random = torch.Generator().manual_seed(1)
    params = torch.randn(length, generator=random, dtype=kind)
    names = algorithm.init(params).stats
    server = State(params, {name: torch.rand(length, generator=random, dtype=kind) for name in names})
    up = {name: torch.rand(length, generator=random, dtype=torch.float64) for name in (*server.stats, "gradient")}
    up = State(torch.randn(length, generator=random, dtype=torch.float64), up)
    return server, CohortResult(up, 10.0, 0.0, 0, 0, 0)


def step(algorithm, piece, monkeypatch):
    monkeypatch.setattr(servers, "PIECE", piece)
    return server_step(algorithm, *sides(algorithm), t=0).tensors()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_step_in_pieces_has_the_bits_of_the_whole(algorithm, monkeypatch):
    assert is_elementwise(algorithm)
    whole, pieces = (step(algorithm, piece, monkeypatch) for piece in (10**6, 64))
    assert list(whole) == list(pieces)
    for name, vector in whole.items():
        assert vector.dtype == torch.float32
        assert torch.equal(vector, pieces[name])


@pytest.mark.parametrize(
    "algorithm", [FedGBO(Normed(0.1, 0.9)), Clipped(SGD(0.1)), Mimelite(Normed(0.1, 0.9))], ids=str
)
def test_formulas_that_do_not_say_so_are_taken_whole(algorithm, monkeypatch):
    assert not is_elementwise(algorithm)
    whole, same = (step(algorithm, piece, monkeypatch) for piece in (10**6, 64))
    assert all(torch.equal(whole[name], same[name]) for name in whole)


def test_a_subclass_without_formulas_of_its_own_is_what_its_parent_is():
    assert is_elementwise(Renamed(SGDm(0.1, 0.9)))


def test_an_error_in_a_piece_is_raised(monkeypatch):
    monkeypatch.setattr(servers, "PIECE", 64)
    server, result = sides(FedAvg(SGD(0.1)))
    with pytest.raises(RuntimeError, match="size"):
        server_step(FedAvg(SGD(0.1)), server, of(result.mean.params[:900]), t=0)


def of(params):
    return CohortResult(State(params), 10.0, 0.0, 0, 0, 0)


def by_formula(algorithm, server, result):
    after = algorithm.server_update(server.to(torch.float64), result.mean, result.steps)
    return after.to(server.params.dtype).tensors()


@native_only
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_one_pass_does_what_the_formula_does(algorithm, kind):
    server, result = sides(algorithm, LONG, kind)
    expected = by_formula(algorithm, server, result)
    after = server_step(algorithm, server, result, t=0, lasting=True).tensors()
    assert list(after) == list(expected)
    for name, vector in after.items():
        assert vector.dtype == kind
        assert torch.allclose(vector, expected[name], rtol=3e-7 if kind == torch.float32 else 1e-13, atol=1e-13)


@native_only
@pytest.mark.parametrize("algorithm", [FedAvg(SGD(0.1)), FedGBO(SGDm(0.1, 0.9))], ids=str)
def test_one_pass_keeps_every_bit_of_a_difference_and_of_a_multiple(algorithm, monkeypatch):
    server, result = sides(algorithm, LONG)
    expected = by_formula(algorithm, server, result)
    passes, sums = [], servers._sums
    monkeypatch.setattr(servers, "WORTH_LOADING", 500)
    monkeypatch.setattr(servers, "_sums", lambda *question: passes.append(question) or sums(*question))
    for piece in (10**6, 1024):  # whole, and in pieces
        monkeypatch.setattr(servers, "PIECE", piece)
        after = server_step(algorithm, server, result, t=0, lasting=True).tensors()
        assert all(torch.equal(vector, expected[name]) for name, vector in after.items())
        assert passes
        passes.clear()


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("piece", [10**6, 1024])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), 1e300])
@pytest.mark.parametrize("at", [0, 3000, LONG - 1])
def test_numbers_that_are_not_finite_are_found(at, bad, piece, lasting, monkeypatch):
    monkeypatch.setattr(servers, "PIECE", piece)
    monkeypatch.setattr(servers, "WORTH_LOADING", 0)
    algorithm = FedGBO(SGDm(0.1, 0.9))
    server, result = sides(algorithm, LONG)
    server_step(algorithm, server, result, t=0, lasting=lasting)
    result.mean.params[at] = bad
    with pytest.raises(DivergenceError, match="params is no longer finite after round 5"):
        server_step(algorithm, server, result, t=4, lasting=lasting)


@native_only
def test_vectors_that_c_could_misread_go_through_the_formula():
    algorithm = FedAvg(SGD(0.1))
    server, result = sides(algorithm, LONG)
    mean = result.mean.params
    expected = server.params.double() - mean
    for other in (torch.stack([mean, mean], dim=1)[:, 0], mean.float()):
        after = server_step(algorithm, server, of(other), t=0, lasting=True).params
        assert torch.allclose(after.double(), expected, atol=1e-6)
    with pytest.raises(RuntimeError, match="size"):
        server_step(algorithm, server, of(mean[:-1]), t=0, lasting=True)


@dataclass(frozen=True)
class Tail(FedAvg):
    """Leaves the last numbers alone."""

    elementwise = True

    def server_update(self, server, mean, steps):
        return State(server.params - mean.params * (torch.arange(len(mean.params)) < LONG - 100))


@dataclass(frozen=True)
class Patient(FedAvg):
    """Takes no notice of numbers that are not finite."""

    elementwise = True

    def server_update(self, server, mean, steps):
        return State(server.params - mean.params.nan_to_num(0, 0, 0))


def test_places_that_are_treated_in_another_way():
    algorithm = Tail(SGD(0.1))
    server, result = sides(algorithm, LONG)
    after = server_step(algorithm, server, result, t=0, lasting=True)
    assert torch.equal(after.params, by_formula(algorithm, server, result)["params"])


def test_a_formula_has_the_last_word_about_numbers_that_are_not_finite():
    algorithm = Patient(SGD(0.1))
    server, result = sides(algorithm, LONG)
    server_step(algorithm, server, result, t=0, lasting=True)
    result.mean.params[7] = torch.nan
    after = server_step(algorithm, server, result, t=1, lasting=True)
    assert torch.equal(after.params, by_formula(algorithm, server, result)["params"])


@native_only
def test_no_algorithm_is_taken_for_another():
    server, result = sides(FedGBO(SGDm(0.1, 0.9)), LONG)
    for lr, steps in ((0.1, 10.0), (0.2, 10.0), (0.2, 5.0), (0.1, 10.0)):
        algorithm, taken = FedGBO(SGDm(lr, 0.9)), CohortResult(result.mean, steps, 0.0, 0, 0, 0)
        after = server_step(algorithm, server, taken, t=0, lasting=True)
        assert torch.equal(after.stats["m"], by_formula(algorithm, server, taken)["stats.m"])
