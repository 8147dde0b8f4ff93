from dataclasses import dataclass

import pytest
import torch

from fedgbo.algorithms import MFL, AdaptiveFedOpt, FedAvg, FedGBO, Mimelite
from fedgbo.core.elementwise import is_elementwise
from fedgbo.core.state import State
from fedgbo.engines.serial import CohortResult
from fedgbo.optimisers import SGD, Adam, RMSProp, SGDm
from fedgbo.runs import round as rounds
from fedgbo.runs.round import server_step

ADAM = Adam(lr=0.01, beta1=0.9, beta2=0.99, eps=1e-3)
ALGORITHMS = [
    FedAvg(SGD(0.1)),
    FedGBO(SGDm(0.1, 0.9)),
    FedGBO(RMSProp(0.1, 0.9, 1e-3)),
    FedGBO(ADAM),
    AdaptiveFedOpt(SGD(0.1), ADAM),
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


def sides(algorithm, length=1000):
    random = torch.Generator().manual_seed(1)
    params = torch.randn(length, generator=random)
    server = State(params, {name: torch.rand(length, generator=random) for name in algorithm.init(params).stats})
    up = {name: torch.rand(length, generator=random, dtype=torch.float64) for name in (*server.stats, "gradient")}
    up = State(torch.randn(length, generator=random, dtype=torch.float64), up)
    return server, CohortResult(up, 10.0, 0.0, 0, 0, 0)


def step(algorithm, piece, monkeypatch):
    monkeypatch.setattr(rounds, "PIECE", piece)
    return server_step(algorithm, *sides(algorithm)).tensors()


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
    monkeypatch.setattr(rounds, "PIECE", 64)
    server, result = sides(FedAvg(SGD(0.1)))
    short = CohortResult(State(result.mean.params[:900]), 10.0, 0.0, 0, 0, 0)
    with pytest.raises(RuntimeError, match="size"):
        server_step(FedAvg(SGD(0.1)), server, short)
