"""What a scale, stand-ins and overrides do, and that they are said."""

import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.experiment import Changes, make_experiment
from fedgbo.experiments.paper.from_runs import paper_experiment

GRID = {"algorithms": "fedavg", "seeds": 5, "rounds": 1000, "eval_every": 50, "local_steps": [10, 50]}


@pytest.mark.parametrize(
    ("scale", "rounds", "every", "seeds", "samples"),
    [(0.5, 500, 25, 3, 5000), (0.1, 100, 5, 2, 1000), (0.001, 1, 1, 2, 200)],
)
def test_a_scale_takes_the_first_seeds_and_fewer_rounds(scale, rounds, every, seeds, samples):
    made = make_experiment(GRID, "e", Changes(scale))
    assert [(c.local_steps, c.seed) for c in made.configs] == [(k, seed) for k in (10, 50) for seed in range(seeds)]
    assert {(c.rounds, c.eval_every, c.test_samples) for c in made.configs} == {(rounds, every, samples)}
    assert made.heading == (f"e; scale {scale:g}: {rounds} rounds, {seeds} seeds, at most {samples} test samples")
    assert made.file_name == f"e-scale{scale:g}"


def test_a_single_seed_stays_single_and_a_smaller_sample_stays_smaller():
    made = make_experiment({**GRID, "seeds": [7], "test_samples": 30}, "e", Changes(0.1))
    assert {(c.seed, c.test_samples) for c in made.configs} == {(7, 30)}


def test_runs_that_a_scale_makes_the_same_are_run_once():
    made = make_experiment({**GRID, "rounds": [1000, 1001], "local_steps": 10}, "e", Changes(0.1))
    assert [(c.rounds, c.seed) for c in made.configs] == [(100, 0), (100, 1)]


def test_scale_1_changes_nothing():
    made = make_experiment(GRID, "e", Changes())
    assert len(made.configs) == 10
    assert {c.test_samples for c in made.configs} == {None}
    assert (made.heading, made.file_name) == ("e", "e")


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_that_is_none(scale):
    with pytest.raises(ConfigError, match="scale must be above 0 and at most 1"):
        Changes(scale)


def test_an_override_that_is_none():
    with pytest.raises(ConfigError, match="'rounds' must be key=value"):
        Changes(overrides=("rounds",))


def test_stand_ins_take_the_places_of_tasks():
    made = paper_experiment("table5", Changes(0.01, stand_ins=True))
    assert {c.task["name"] for c in made.configs} == {"shakespeare-synthetic"}
    assert {c.task["samples"] for c in made.configs} == {64}
    assert "synthetic stand-ins for the data; scale 0.01: 50 rounds, 2 seeds" in made.heading
    assert "shorter texts: 64 samples a client" in made.heading
    assert made.file_name == "table5-stand-ins-scale0.01"
    with pytest.raises(ConfigError, match=r"there is no stand-in for digits \(there are for: cifar100, femnist"):
        make_experiment({**GRID, "tasks": "digits"}, "e", Changes(stand_ins=True))


@pytest.mark.parametrize(
    ("name", "runs"), [("figure1", 100), ("figure2", 295), ("figure3", 295), ("table4", 135), ("table5", 90)]
)
def test_the_papers_experiments(name, runs):
    made = paper_experiment(name, Changes())
    assert len(made.configs) == runs
    assert {(c.rounds, c.eval_every, c.test_samples) for c in made.configs} == {(5000, 50, None)}
    assert made.allow_divergence


def test_table_4_takes_its_runs_from_figure_2():
    figure, table = (paper_experiment(name, Changes()).configs for name in ("figure2", "table4"))
    assert all(config in figure for config in table)


def test_a_part_of_it_is_said():
    made = paper_experiment("table4", Changes(), ["sent140"], ["sgdm"])
    assert made.heading == "Table 4: best accuracy and its cost, K = 10, SGDm; only sent140, sgdm"
    assert made.file_name == "table4-sent140-sgdm"
