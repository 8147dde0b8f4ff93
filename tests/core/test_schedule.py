from dataclasses import dataclass

import pytest

import fedgbo
from fedgbo.core.schedule import at_round


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (fedgbo.Constant(0.5), [0.5, 0.5, 0.5]),
        (fedgbo.Step(1.0, every=2, factor=0.1), [1.0, 1.0, 0.1]),
        (fedgbo.Exponential(1.0, factor=0.5), [1.0, 0.5, 0.25]),
        (fedgbo.InverseSqrt(2.0), [2.0, 2.0 / 2**0.5, 2.0 / 3**0.5]),
    ],
)
def test_values(schedule, values):
    assert [schedule(t) for t in range(3)] == pytest.approx(values)


def test_at_round_reaches_into_algorithms_and_terms():
    algorithm = fedgbo.FedGBO(
        fedgbo.SGDm(lr=fedgbo.Exponential(1.0, factor=0.5), beta=0.9),
        objective=[fedgbo.Proximal(mu=fedgbo.Step(1.0, every=1, factor=0.1))],
    )
    now = at_round(algorithm, 2)
    assert now.optimiser == fedgbo.SGDm(lr=0.25, beta=0.9)
    assert now.objective[0].mu == pytest.approx(0.01)


@pytest.mark.parametrize("wrap", [lambda term: term, lambda term: [term], lambda term: (term,)])
def test_at_round_sees_equal_algorithms_with_and_without_a_schedule(wrap):
    for mu in (0.5, fedgbo.Constant(0.5), fedgbo.Step(0.5, every=1, factor=0.5), 0.5):
        algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1), objective=wrap(fedgbo.Proximal(mu=mu)))
        for t in (0, 1):
            assert at_round(algorithm, t).terms[0].mu == (0.25 if isinstance(mu, fedgbo.Step) and t else 0.5)


@dataclass(frozen=True, eq=False)
class Slowed(fedgbo.FedAvg):
    """It inherits an == that does not see its field."""

    pace: object = 1.0


def test_at_round_goes_by_the_object_and_not_by_what_it_equals():
    constant, scheduled = (Slowed(fedgbo.SGD(0.1), pace=pace) for pace in (1.0, fedgbo.Step(1.0, every=1, factor=0.5)))
    assert constant == scheduled
    assert [at_round(thing, 1).pace for thing in (constant, scheduled, constant)] == [1.0, 0.5, 1.0]


def test_at_round_sees_a_list_that_changes():
    algorithm = fedgbo.FedAvg(fedgbo.SGD(0.1), objective=[])
    assert at_round(algorithm, 0).terms == ()
    algorithm.objective.append(fedgbo.Proximal(mu=fedgbo.Step(1.0, every=1, factor=0.5)))
    assert at_round(algorithm, 1).terms[0].mu == 0.5


def test_at_round_gives_the_same_object_back_where_nothing_is_scheduled():
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    assert at_round(algorithm, 7) is algorithm


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), "fast", True])
def test_bad_numbers(bad):
    with pytest.raises(fedgbo.ConfigError, match="schedule: initial must be above 0"):
        fedgbo.Constant(bad)
