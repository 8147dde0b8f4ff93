from itertools import product

import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.tune.plan import DECAYS, RATES, plan_of


def plan(*ranges, algorithm="fedgbo", optimiser="sgdm", **asked):
    return plan_of("digits", algorithm, optimiser, ranges, {"held_out": 0.2, **asked})


def test_a_grid_has_every_cell_once():
    grid = plan(search="grid")
    cells = [tuple(grid.spread(index).values()) for index in range(grid.trials)]
    assert sorted(cells) == sorted(product(RATES, DECAYS))
    assert cells != list(product(RATES, DECAYS))  # successive halving wants them in no order


def test_first_settings_fill_the_box():
    three = plan("lr=0.01:1", "server_lr=0.1:10", "beta=0.5:0.97", algorithm="adaptivefedopt")
    points = [three.spread(index) for index in range(10)]
    assert three.spread(10) is None
    for name, low, high in [("lr", 0.01, 1), ("server_lr", 0.1, 10), ("beta", 0.5, 0.97)]:
        values = sorted(point[name] for point in points)
        assert low <= values[0] < values[-1] <= high
        assert len(set(values)) == 10
        halves = [value < (low * high) ** 0.5 for value in values] if name != "beta" else [v < 0.877 for v in values]
        assert 3 <= sum(halves) <= 7


def test_what_is_left_open():
    assert plan_of("digits", "fedavg", None, [], {}).held_out == 0.2
    assert plan().trials == 30
    assert plan(budget=900).trials > 100_000
    assert plan(search="grid", trials=5).trials == 5
    assert plan(rounds=400).eval_every == 20
    assert plan(rounds=3).eval_every == 1
    assert (plan(clients_per_round="5").clients_per_round, plan(batch_size="full").batch_size) == (5, "full")


def test_a_run_of_the_plan():
    config = plan("eps=1e-2", optimiser="adam", test_samples=7).config({"lr": 0.1, "beta1": 0.9}, 103)
    assert config.algorithm == {"name": "fedgbo", "optimiser": {"name": "adam", "eps": 1e-2, "lr": 0.1, "beta1": 0.9}}
    assert (config.seed, config.held_out, config.test_samples) == (103, 0.2, 7)
    assert plan(held_out=None).config({"lr": 1, "beta": 0.5}, 0).held_out is None


@pytest.mark.parametrize(
    ("ranges", "asked", "complaint"),
    [
        (["lr=0.1:1"], {"search": "grid"}, "a grid needs values for lr"),
        ([], {"search": "random"}, "--search must be 'tpe' or 'grid', not 'random'"),
        ([], {"score": "worst"}, "--score must be 'curve', 'best' or 'last'"),
        ([], {"batch_size": "some"}, "--batch-size must be a whole number or 'full', not 'some'"),
        ([], {"budget": 199}, "a budget of 199 rounds is less than one trial's 200"),
        ([], {"warm_up": 100}, "warm-up must be from 0 to below the 100 rounds"),
        ([], {"prune": 1}, "prune must be 0, for no pruning, or at least 2"),
        ([], {"seeds": 0}, "seeds must be a whole number of at least 1"),
        (["mu=0.1:1"], {}, "fedgbo with sgdm takes no mu"),
        (["beta=0.5:1"], {}, "beta must be at least 0 and below 1"),
        (["lr=-1:1"], {}, "lr must be a finite number above 0"),
    ],
)
def test_searches_that_cannot_be(ranges, asked, complaint):
    with pytest.raises(ConfigError, match=complaint):
        plan(*ranges, **asked)


def test_names_that_are_not_known():
    for names in [("digit", "fedgbo", None), ("digits", "fedgb", None), ("digits", "fedgbo", "adma")]:
        with pytest.raises(ConfigError, match="did you mean"):
            plan_of(*names, [], {})
