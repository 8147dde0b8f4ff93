"""Each formula of Table 2 once by hand, and what must hold for every optimiser in the catalogue."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedgbo
from fedgbo.core.optimiser import AffineStep
from fedgbo.optimisers import OPTIMISERS
from tests.examples import AFFINE
from tests.examples import OPTIMISERS as EXAMPLES

X, G = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, -1.0], dtype=torch.float64)
M, V = torch.tensor([0.2, 0.4], dtype=torch.float64), torch.tensor([4.0, 0.25], dtype=torch.float64)


def close(tensor, values):
    assert torch.allclose(tensor, torch.tensor(values, dtype=torch.float64), rtol=0, atol=1e-12)


def test_every_optimiser_has_an_example():
    assert set(EXAMPLES) == set(OPTIMISERS)


def test_initial_statistics():
    assert fedgbo.SGD(lr=1.0).init(X) == {}
    close(fedgbo.SGDm(lr=1.0, beta=0.9).init(X)["m"], [0, 0])
    close(fedgbo.RMSProp(lr=1.0, beta=0.9).init(X)["v"], [1, 1])
    stats = fedgbo.Adam(lr=1.0, beta1=0.9).init(X)
    close(stats["m"], [0, 0])
    close(stats["v"], [1, 1])
    assert fedgbo.Adam(lr=1.0, beta1=0.9).beta2 == 0.99
    assert fedgbo.Adam(lr=1.0, beta1=0.9).eps == fedgbo.RMSProp(lr=1.0, beta=0.9).eps == 1e-3


def test_sgd_by_hand():
    close(EXAMPLES["sgd"].update(X, {}, G), [1 - 0.05, 2 + 0.1])
    close(EXAMPLES["sgd"].invert({}, torch.tensor([0.1, -0.2], dtype=torch.float64), 2), [0.5, -1.0])


def test_sgdm_by_hand():
    # beta m + (1 - beta) g = 0.18 + 0.05, 0.36 - 0.1
    opt, stats = EXAMPLES["sgdm"], {"m": M}
    close(opt.update(X, stats, G), [1 - 0.023, 2 - 0.026])
    close(opt.track(stats, G)["m"], [0.23, 0.26])
    close(opt.invert(stats, 3 * torch.tensor([0.023, 0.026], dtype=torch.float64), 3), [0.5, -1.0])
    params, moved = opt.step(X, stats, G)
    close(params, [1 - 0.023, 2 - 0.026])
    close(moved["m"], [0.23, 0.26])


def test_rmsprop_by_hand():
    # sqrt v + eps = 2.5, 1.0
    opt, stats = EXAMPLES["rmsprop"], {"v": V}
    close(opt.update(X, stats, G), [1 - 0.05 / 2.5, 2 + 0.1])
    close(opt.track(stats, G)["v"], [3.6 + 0.025, 0.225 + 0.1])
    close(opt.invert(stats, 2 * torch.tensor([0.02, -0.1], dtype=torch.float64), 2), [0.5, -1.0])
    params, moved = opt.step(X, stats, G)  # with the fresh v
    close(params, [1 - 0.05 / (3.625**0.5 + 0.5), 2 + 0.1 / (0.325**0.5 + 0.5)])
    close(moved["v"], [3.625, 0.325])


def test_adam_by_hand():
    opt, stats = EXAMPLES["adam"], {"m": M, "v": V}
    close(opt.update(X, stats, G), [1 - 0.023 / 2.5, 2 - 0.026])
    tracked = opt.track(stats, G)
    close(tracked["m"], [0.23, 0.26])
    close(tracked["v"], [3.0 + 0.0625, 0.1875 + 0.25])
    close(opt.invert(stats, 4 * torch.tensor([0.0092, 0.026], dtype=torch.float64), 4), [0.5, -1.0])
    params, moved = opt.step(X, stats, G)  # with the fresh m and v
    close(params, [1 - 0.023 / (3.0625**0.5 + 0.5), 2 - 0.026 / (0.4375**0.5 + 0.5)])
    assert moved.keys() == {"m", "v"}


numbers = st.floats(-5, 5, allow_nan=False)


@pytest.mark.parametrize("name", AFFINE)
@given(data=st.data())
def test_inverse_returns_the_mean_gradient_also_with_unequal_steps(name, data):
    """I after K fixed-statistics updates is the mean of all gradients; with unequal K, by the mean K."""
    opt = EXAMPLES[name]
    steps = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    vector = st.lists(numbers, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    start = data.draw(vector)
    stats = opt.anchor({key: data.draw(vector).abs() + 0.01 for key in opt.init(start)}, start)
    gradients, deltas = [], []
    for k in steps:
        y = start
        for _ in range(k):
            gradients.append(data.draw(vector))
            y = opt.update(y, stats, gradients[-1])
        deltas.append(start - y)
    recovered = opt.invert(stats, torch.stack(deltas).mean(0), sum(steps) / len(steps))
    expected = torch.stack(gradients).mean(0)
    assert torch.allclose(recovered, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", AFFINE)
@given(data=st.data())
def test_update_is_affine_in_the_gradient(name, data):
    opt = EXAMPLES[name]
    vector = st.lists(numbers, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    params, grad = data.draw(vector), data.draw(vector)
    stats = opt.anchor({key: data.draw(vector).abs() + 0.01 for key in opt.init(params)}, params)
    a, b = opt.affine(stats)
    assert torch.equal(opt.update(params, stats, grad), params - (a + b * grad))
    step = opt.fixed(stats).like(params)
    assert torch.equal(step(params, grad), opt.update(params, stats, grad))


def test_an_affine_step_in_the_form_that_compiled_code_takes():
    x = torch.zeros(3)
    step = AffineStep(0.5, torch.tensor(2.0)).like(x)
    assert step.offset.tolist() == [0.5] * 3
    assert step.scale == 2.0
    step = AffineStep(0.0, torch.ones(3, dtype=torch.float64)).like(x)
    assert step.offset == 0.0
    assert step.scale.dtype == torch.float32


@dataclass(frozen=True)
class Default(fedgbo.Optimiser):
    """Writes `update` and `track` alone."""

    def init(self, params):
        return {"m": torch.zeros_like(params)}

    def update(self, params, stats, grad):
        return params - torch.sign(stats["m"] + grad)

    def track(self, stats, grad):
        return {"m": grad}


def test_by_default_a_step_updates_with_the_old_statistics_and_then_tracks():
    params, stats = Default().step(X, {"m": torch.tensor([-2.0, 0.0], dtype=torch.float64)}, G)
    close(params, [2, 3])
    close(stats["m"], G.tolist())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.SGD(lr=0), "lr must be a finite number above 0, not 0"),
        (lambda: fedgbo.SGD(lr=float("nan")), "lr must be a finite number above 0"),
        (lambda: fedgbo.SGDm(lr=-1, beta=0.9), "lr must be a finite number above 0, not -1"),
        (lambda: fedgbo.SGDm(lr="0.1", beta=0.9), "lr must be a finite number above 0, not '0.1'"),
        (lambda: fedgbo.SGDm(lr=0.1, beta=1.0), "beta must be at least 0 and below 1, not 1.0"),
        (lambda: fedgbo.RMSProp(lr=0.1, beta=-0.1), "beta must be at least 0 and below 1"),
        (lambda: fedgbo.RMSProp(lr=0.1, beta=0.9, eps=0), "eps must be a finite number above 0"),
        (lambda: fedgbo.Adam(lr=0.1, beta1=1.5), "beta1 must be at least 0 and below 1"),
        (lambda: fedgbo.Adam(lr=0.1, beta1=0.9, beta2=1), "beta2 must be at least 0 and below 1"),
    ],
)
def test_bad_hyperparameters(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()
