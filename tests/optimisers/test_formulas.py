"""Each formula of Table 2 once by hand, and what must hold for every optimiser in the catalogue."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedgbo
from fedgbo.optimisers import OPTIMISERS

X, G = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([0.5, -1.0], dtype=torch.float64)
M, V = torch.tensor([0.2, 0.4], dtype=torch.float64), torch.tensor([4.0, 0.25], dtype=torch.float64)
EXAMPLES = {
    "sgd": fedgbo.SGD(lr=0.1),
    "sgdm": fedgbo.SGDm(lr=0.1, beta=0.9),
    "rmsprop": fedgbo.RMSProp(lr=0.1, beta=0.9, eps=0.5),
    "adam": fedgbo.Adam(lr=0.1, beta1=0.9, beta2=0.75, eps=0.5),
}


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


@pytest.mark.parametrize("name", EXAMPLES)
@given(data=st.data())
def test_inverse_returns_the_mean_gradient_also_with_unequal_steps(name, data):
    """I after K fixed-statistics updates is the mean of all gradients; with unequal K, by the mean K."""
    opt = EXAMPLES[name]
    steps = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    vector = st.lists(numbers, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    start = data.draw(vector)
    stats = {key: data.draw(vector).abs() + 0.01 for key in opt.init(start)}
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


@pytest.mark.parametrize("name", EXAMPLES)
@given(data=st.data(), steps=st.floats(1, 50))
def test_learning_is_tracking_the_inverse(name, data, steps):
    opt = EXAMPLES[name]
    vector = st.lists(numbers, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    delta = data.draw(vector)
    stats = {key: data.draw(vector).abs() + 0.01 for key in opt.init(delta)}
    expected = opt.track(stats, opt.invert(stats, delta, steps))
    learnt = opt.learn(stats, delta, steps)
    assert learnt.keys() == expected.keys()
    for key in expected:
        assert torch.allclose(learnt[key], expected[key], rtol=1e-12, atol=1e-12)


class Doubled(fedgbo.SGDm):
    """A subclass with a formula of its own, for which SGDm's shortcut would be wrong."""

    def track(self, stats, grad):
        return {"m": 2 * grad}


class Clips:
    """A formula from elsewhere."""

    def __init_subclass__(cls, note="", **kwargs):
        super().__init_subclass__(**kwargs)

    def track(self, stats, grad):
        return {"m": 2 * grad}


class Mixed(Clips, fedgbo.SGDm, note="kept"):
    """The same, from a class beside it."""


class Below(Mixed):
    """And inherited."""


class Same(fedgbo.SGDm):
    """One with none."""


def test_a_shortcut_is_not_inherited_by_other_formulas():
    delta = torch.tensor([0.06, -0.03], dtype=torch.float64)
    close(fedgbo.SGDm(lr=0.1, beta=0.9).learn({"m": M}, delta, 3)["m"], [0.2, -0.1])
    close(Same(lr=0.1, beta=0.9).learn({"m": M}, delta, 3)["m"], [0.2, -0.1])
    for kind in (Doubled, Mixed, Below):
        own = kind(lr=0.1, beta=0.9)
        close(own.learn({"m": M}, delta, 3)["m"], (2 * own.invert({"m": M}, delta, 3)).tolist())


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
