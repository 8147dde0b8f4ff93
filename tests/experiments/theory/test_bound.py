"""Theorem 1 and Corollary 1 by hand, and what must follow from what."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import fedgbo
from fedgbo.experiments.theory.bound import (
    Bound,
    Condition,
    Problem,
    Training,
    best_c,
    conditions,
    corollary,
    corollary_step,
    floor,
    perturbation,
    step_of,
    theorem,
)

sizes = st.floats(0.01, 100)
problems = st.builds(Problem, smoothness=sizes, gradient=sizes, heterogeneity=sizes, noise=sizes, gap=sizes)
betas = st.floats(0, 0.99)
trainings = st.builds(
    Training,
    beta=betas,
    local_steps=st.integers(1, 100),
    rounds=st.integers(101, 10_000),
    step=st.floats(1e-5, 10),
    lipschitz=st.none() | st.floats(0.1, 10),
)


def test_by_hand():
    """L = 2, R = 3, G = 1, σ = 2, F(x_0) - F* = 5; β = ½, K = 4, T = 9, η̃ = 0.1, B = 1."""
    problem = Problem(2, 3, 1, 2, 5)
    training = Training(beta=0.5, local_steps=4, rounds=9, step=0.1, lipschitz=1)
    y = 18 * 1 * 4 * (9 + 1 + 4 / 4)
    assert perturbation(problem, training) == pytest.approx(y) == pytest.approx(792)
    assert training.effective_rounds == 8
    got = theorem(problem, training)
    assert got.start == pytest.approx(2 * 0.5 / (0.1 * 8) * 5)  # 6.25
    assert got.drift == pytest.approx(9 * 0.01 * 792 / 8)  # 8.91
    assert got.momentum == pytest.approx(2 * 9 * 0.1 * 2 * 1.5 * (9 + 7.92) / (8 * 0.25))  # (1 - β)², not 1 - β
    assert got.total == pytest.approx(6.25 + 8.91 + 45.684)
    assert got.dominant == "momentum"


def test_corollary_by_hand():
    """C = ½, T = 100, β = 0: Z = 4 C² (1 - β)² Y = Y, and η̃ = 2 C / √T = 0.1."""
    problem = Problem(1, 1, 0, 0, 2)
    assert corollary_step(0.5, 0.0, 100) == pytest.approx(0.1)
    training = Training(0.0, 1, 100, 0.1)
    got = corollary(problem, training)
    assert got == Bound(
        start=pytest.approx(2 / (0.5 * 10)),
        drift=pytest.approx(18 / 100),
        momentum=pytest.approx(4 * 0.5 * (1 + 18 / 100) / 10),
    )


@given(problems, trainings, st.floats(0.01, 10))
def test_corollary_follows_from_the_theorem(problem, training, c):
    """Its printed form, with C and Z; and the theorem's is larger by exactly T / T̃."""
    t, beta = training.rounds, training.beta
    training = replace(training, step=corollary_step(c, beta, t))
    z = 4 * c**2 * (1 - beta) ** 2 * perturbation(problem, training)
    size = problem.gradient**2 + z / t
    printed = (
        problem.gap / (c * math.sqrt(t))
        + 4 * c * problem.smoothness * (1 + beta) * size / ((1 - beta) * math.sqrt(t))
        + z / t
    )
    assert corollary(problem, training).total == pytest.approx(printed)
    assert theorem(problem, training).total == pytest.approx(printed * t / training.effective_rounds)


@given(problems, trainings)
def test_the_third_term_has_the_square(problem, training):
    """(18) divided by η̃ T̃ / (2 (1 - β)) of (21) leaves (1 - β)² of (1 - β)³."""
    y, step, beta, t = perturbation(problem, training), training.step, training.beta, training.rounds
    of_18 = step**2 * problem.smoothness * t * (1 + beta) * (problem.gradient**2 + step**2 * y) / (1 - beta) ** 3
    of_21 = step * training.effective_rounds / (2 * (1 - beta))
    assert theorem(problem, training).momentum == pytest.approx(of_18 / of_21)


@given(problems, trainings, st.floats(1.01, 3))
def test_worse_constants_never_help(problem, training, factor):
    before = theorem(problem, training).total
    for name in ("smoothness", "gradient", "heterogeneity", "noise", "gap"):
        worse = replace(problem, **{name: factor * getattr(problem, name)})
        assert theorem(worse, training).total >= before
    assert theorem(problem, replace(training, lipschitz=factor * training.b)).total >= before


@given(problems, trainings)
def test_more_rounds_and_more_local_steps_never_hurt_with_the_same_step(problem, training):
    before = theorem(problem, training)
    longer = theorem(problem, replace(training, rounds=2 * training.rounds))
    assert longer.start < before.start
    assert longer.total <= before.total
    assert theorem(problem, replace(training, local_steps=2 * training.local_steps)).total <= before.total
    far = theorem(problem, replace(training, rounds=10**12))
    assert far.total - far.start == pytest.approx(floor(problem, training))
    assert far.start < 1e-3


@given(problems, trainings)
def test_the_rate_is_one_over_root_t(problem, training):
    c = best_c(problem, training.beta)

    def at(rounds):
        return corollary(problem, replace(training, rounds=rounds, step=corollary_step(c, training.beta, rounds))).total

    assert at(4 * 10**60) == pytest.approx(at(10**60) / 2, rel=0.01)


@given(problems, betas, st.floats(1.01, 10))
def test_the_best_c_is_the_best_of_the_leading_terms(problem, beta, factor):
    def leading(c):
        return problem.gap / c + 4 * c * problem.smoothness * (1 + beta) * problem.gradient**2 / (1 - beta)

    c = best_c(problem, beta)
    assert leading(c) <= leading(c * factor)
    assert leading(c) <= leading(c / factor)


@given(betas, st.integers(1, 100), st.integers(101, 10_000), st.floats(0.01, 10))
def test_the_learning_rate_of_sgdm(beta, local_steps, rounds, c):
    """Corollary 1's η̃ is the learning rate 2 C / (K √T) of our SGDm, whatever β."""
    training = Training(beta, local_steps, rounds, corollary_step(c, beta, rounds))
    assert training.lr == pytest.approx(2 * c / (local_steps * math.sqrt(rounds)))
    assert step_of(training.lr, beta, local_steps) == pytest.approx(training.step)


@pytest.mark.parametrize(
    ("beta", "rounds", "enough"),
    [
        (0.9, 10, False), (0.9, 11, True), (0.0, 1, False), (0.0, 2, True),
        (0.99, 100, False), (0.99, 101, True), (0.999, 1000, False),  # 1 / (1 - 0.99) is 99.99999999999991
    ],
)  # fmt: skip
def test_rounds_must_exceed_the_horizon(beta, rounds, enough):
    training = Training(beta, 1, rounds, 0.1)
    found = {c.name: c.holds for c in conditions(Problem(), training)}
    assert found["rounds T above 1 / (1 - β)"] is enough
    if enough:
        assert theorem(Problem(), training).total > 0
    else:
        with pytest.raises(fedgbo.ConfigError, match=r"needs more than 1 / \(1 - beta\) = .* rounds, not"):
            theorem(Problem(), training)


@given(problems, trainings)
def test_which_conditions_hold(problem, training):
    assume(training.b != 1 / (1 - training.beta) or training.lipschitz is None)
    found = {c.name.split(",")[0].split(" ")[0]: c for c in conditions(problem, training) if c.of != "corollary"}
    assert found["beta"].holds
    assert found["step"].holds
    assert found["rounds"].holds
    assert found["B"].holds == (training.b >= 1 / (1 - training.beta))
    assert found["G"].holds == (problem.heterogeneity <= problem.gradient)
    assert found["σ"].holds == (problem.noise <= problem.gradient)


@pytest.mark.parametrize(
    ("value", "at_least", "strict", "sign", "holds"),
    [
        (1, True, True, ">", False),
        (1, True, False, ">=", True),
        (2, True, True, ">", True),
        (2, False, False, "<=", False),
    ],
)
def test_a_condition(value, at_least, strict, sign, holds):
    condition = Condition("x", value, 1, at_least=at_least, strict=strict)
    assert (condition.sign, condition.holds) == (sign, holds)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Problem(smoothness=0), "smoothness must be a finite number above 0"),
        (lambda: Problem(gradient=0), "gradient must be a finite number above 0"),
        (lambda: Problem(gap=-1), "gap must be a finite number of at least 0"),
        (lambda: Training(1.0, 1, 1, 1), "beta must be at least 0 and below 1"),
        (lambda: Training(0.5, 0, 1, 1), "local_steps must be a whole number"),
        (lambda: Training(0.5, 1, 1, 0), "step must be a finite number above 0"),
        (lambda: Training(0.5, 1, 1, 1, 0), "lipschitz must be a finite number above 0"),
        (lambda: corollary_step(0, 0.5, 1), "c must be a finite number above 0"),
        (lambda: best_c(Problem(gap=0), 0.5), "with a gap of 0 the best C is 0"),
    ],
)
def test_numbers_that_make_no_sense(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()
