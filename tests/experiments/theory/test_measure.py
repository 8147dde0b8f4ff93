"""FedGBO on quadratics stays below the bound, and the check can fail."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import fedgbo
from fedgbo.experiments.theory.measure import (
    bound_chart,
    bound_rows,
    known_problem,
    measure,
    measured_rows,
    plan,
    weighted_mean,
)
from fedgbo.tasks.quadratic import Quadratics

QUADRATICS = Quadratics.draw(4, 8, 10, 1.0, 1.0, 10.0, 0)
PROBLEM = known_problem(QUADRATICS)


@pytest.fixture(scope="module")
def measured():
    """A small step, by the best C, and one that really moves."""
    cautious = plan(PROBLEM, [0.0, 0.9], [15, 60], local_steps=3)
    bold = plan(PROBLEM, [0.9], [60], local_steps=3, c=2.0)
    return [measure(QUADRATICS, PROBLEM, training) for training in [*cautious, *bold]]


def test_measured_gradients_are_below_the_bound(measured):
    for result in measured:
        assert result.holds, [check for check in result.checks if not check.holds]
        assert 0 < result.measured <= result.bound.total
        assert [check.limit >= check.value > 0 for check in result.checks] == [True] * 4
    assert measured[-1].measured < measured[-2].measured / 2  # the bold one gets somewhere


@pytest.mark.parametrize("name", ["gradient", "smoothness"])
def test_a_constant_that_is_too_small_is_found_out(measured, name):
    """The runs are the same, the claims about the objective are not."""
    training = measured[0].training
    result = measure(QUADRATICS, replace(PROBLEM, **{name: getattr(PROBLEM, name) / 10}), training)
    assert result.measured == measured[0].measured
    assert not result.holds
    assert result.checks[{"gradient": 0, "smoothness": 1}[name]].holds is False


def test_with_all_constants_too_small_the_bound_itself_fails(measured):
    tiny = replace(PROBLEM, gradient=1e-3, heterogeneity=1e-3, noise=1e-3, gap=1e-4)
    result = measure(QUADRATICS, tiny, measured[0].training)
    assert result.measured > result.bound.total
    assert not result.checks[3].holds


def test_the_perturbation_is_watched(measured):
    """B too small, where B only enters through Y, makes the limit of ‖e_t‖ too small."""
    training = measured[1].training
    assert not measure(QUADRATICS, PROBLEM, replace(training, lipschitz=1e-4)).checks[2].holds


def test_the_weights_are_those_of_the_theorem():
    assert weighted_mean([1.0, 4.0], beta=0.5) == 2.2  # weights 3/4 and 1/2
    squares = [4.0, 2.0, 1.0]
    weights = np.array([1 - 0.5**3, 1 - 0.5**2, 1 - 0.5])
    assert weighted_mean(squares, 0.5) == pytest.approx((weights * squares).sum() / weights.sum())
    assert weighted_mean(squares, 0.0) == pytest.approx(7 / 3)


def test_what_is_measured_is_the_mean_over_the_rounds_beginnings():
    training = plan(PROBLEM, [0.0], [2], local_steps=2, c=1.0)[0]
    first = fedgbo.run(
        QUADRATICS.task(), fedgbo.FedGBO(fedgbo.SGDm(lr=training.lr, beta=0.0)), rounds=1, local_steps=2
    )  # fmt: skip
    squares = [np.sum(QUADRATICS.gradient(x) ** 2) for x in (np.zeros(4), first.params.numpy())]
    assert measure(QUADRATICS, PROBLEM, training).measured == pytest.approx(np.mean(squares))


def test_all_is_checked_before_anything_is_run():
    with pytest.raises(fedgbo.ConfigError, match="= 100 rounds, not 50"):
        plan(PROBLEM, [0.0, 0.99], [50], local_steps=3)
    with pytest.raises(fedgbo.ConfigError, match="seeds must be a whole number"):
        measure(QUADRATICS, PROBLEM, plan(PROBLEM, [0.0], [50], 3)[0], seeds=0)


def test_several_seeds_are_averaged():
    training = plan(PROBLEM, [0.0], [5], local_steps=2)[0]
    one, two = (measure(QUADRATICS, PROBLEM, training, seeds=n) for n in (1, 2))
    assert one.measured != two.measured
    assert one.checks[0].value <= two.checks[0].value  # the largest of both


def test_curves_begin_where_the_theorem_does_and_fall():
    assert bound_rows(PROBLEM, [0.99], [1], most=1000)[0]["rounds"] == 101
    rows = bound_rows(PROBLEM, [0.0, 0.9], [1, 10], most=1000)
    assert {(row["colour"], row["dash"]) for row in rows} == {
        ("β = 0", "K = 1"), ("β = 0", "K = 10"), ("β = 0.9", "K = 1"), ("β = 0.9", "K = 10")
    }  # fmt: skip
    for colour, least in (("β = 0", 2), ("β = 0.9", 11)):
        curve = [(row["rounds"], row["value"]) for row in rows if row["colour"] == colour and row["dash"] == "K = 10"]
        assert (curve[0][0], curve[-1][0]) == (least, 1000)
        assert all(a[1] > b[1] for a, b in pairwise(curve))
    fixed = bound_rows(PROBLEM, [0.5], [10], most=10**9, lr=0.01)
    assert fixed[-1]["value"] == pytest.approx(fixed[-2]["value"], rel=1e-3)  # a floor


def test_the_picture_has_every_line(measured):
    rows = measured_rows(measured[:4])
    assert [row["dash"] for row in rows[:2]] == ["measured", "Theorem 1"]
    chart = bound_chart(rows, "title", "subtitle", points=True).to_dict()
    line = chart["layer"][0]["encoding"]
    assert line["color"]["scale"]["domain"] == ["β = 0", "β = 0.9"]
    assert line["strokeDash"]["scale"]["domain"] == ["measured", "Theorem 1"]
    assert len(chart["data"]["values"]) == 8
