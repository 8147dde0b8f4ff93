from dataclasses import dataclass

import pytest
import torch

import fedgbo
from fedgbo.engines.affine import affine, is_multiple, simple

LENGTH = 50


def stats_of(optimiser):
    torch.manual_seed(0)
    return {name: torch.rand(LENGTH).double() for name in optimiser.init(torch.zeros(LENGTH).double())}


@pytest.mark.parametrize(
    "optimiser", [fedgbo.SGD(0.3), fedgbo.SGDm(0.3, 0.9), fedgbo.RMSProp(0.3, 0.9), fedgbo.Adam(0.3, 0.9)]
)
def test_the_two_vectors_do_what_the_update_does(optimiser):
    stats = stats_of(optimiser)
    params, grad = torch.randn(LENGTH).double(), torch.randn(LENGTH).double()
    step = affine(optimiser, params, stats)
    expected = optimiser.update(params, stats, grad)
    assert torch.allclose(params - (step.offset + step.scale * grad), expected, rtol=1e-12)


def test_adam_by_hand():
    step = affine(
        fedgbo.Adam(lr=1.0, beta1=0.5, eps=0.5),
        torch.zeros(1).double(),
        {"m": torch.full((1,), 2.0).double(), "v": torch.full((1,), 0.25).double()},
    )
    assert (step.offset.item(), step.scale.item()) == (1.0, 0.5)


@dataclass(frozen=True)
class Own(fedgbo.Optimiser):
    """An optimiser of the user's own."""

    step_size: object

    def update(self, params, stats, grad):
        return params - self.step_size(params, grad)


@pytest.mark.parametrize(
    "step_size",
    [
        lambda y, g: 0.1 * (g + 0.01 * y),  # weight decay
        lambda y, g: 0.1 * g.clamp(-100, 100),
        lambda y, g: 0.1 * g / g.norm().clamp(min=1),
        lambda y, g: 0.1 * g.sign(),
        lambda y, g: 0.1 * g.mean() + 0 * g,  # affine, but not elementwise
        lambda y, g: 0.1 * g * torch.nan,
    ],
)
def test_other_steps_are_found_out(step_size):
    assert affine(Own(step_size), torch.zeros(LENGTH).double(), {}) is None
    assert affine(Own(lambda y, g: 2 * g + 1), torch.zeros(LENGTH).double(), {}) is not None


@pytest.mark.parametrize(
    ("optimiser", "names", "numbers"),
    [(fedgbo.SGD(0.5), [], (0.0, 0.5)), (fedgbo.SGDm(0.5, 0.75), ["m"], (0.375, 0.125))],
)
def test_steps_of_two_numbers(optimiser, names, numbers):
    assert is_multiple(optimiser, names, LENGTH)
    assert simple(optimiser, names) == numbers


@dataclass(frozen=True)
class Signed(fedgbo.SGDm):
    """An offset that is no multiple of the statistic."""

    def update(self, params, stats, grad):
        return params - self.lr * (stats["m"].sign() + grad)

    def affine(self, stats):
        return self.lr * stats["m"].sign(), self.lr


@dataclass(frozen=True)
class Partial(fedgbo.SGDm):
    """Momentum for some of the numbers only."""

    def update(self, params, stats, grad):
        return super().update(params, {"m": stats["m"] * (torch.arange(len(grad)) < 30)}, grad)

    def affine(self, stats):
        return super().affine({"m": stats["m"] * (torch.arange(len(stats["m"])) < 30)})


def test_other_steps_take_vectors():
    assert simple(fedgbo.Adam(0.5, 0.9), ["m", "v"]) is None
    assert simple(fedgbo.RMSProp(0.5, 0.9), ["v"]) is None
    assert simple(fedgbo.SGD(0.5), ["m"]) is None  # whose statistic is another's
    assert not is_multiple(Signed(0.5, 0.9), ["m"], LENGTH)
    assert not is_multiple(Partial(0.5, 0.9), ["m"], LENGTH)
