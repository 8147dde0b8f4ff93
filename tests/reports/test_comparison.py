"""Paired comparisons, by hand and against scipy; the numbers of Table 4, by hand from run folders written by hand."""

import numpy as np
import pytest
from scipy import stats

import fedgbo
from fedgbo.core.errors import ConfigError
from fedgbo.reports.comparison import Paired, conclusion, confidence, paired, summarise
from fedgbo.reports.cost_table import cost_columns, cost_lines
from fedgbo.reports.load import group_runs
from tests.reports.runs import FEDAVG, FEDGBO


def test_against_scipy():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.02, 0.1, size=(2, 7))
    found, known = paired(ours, theirs), stats.ttest_rel(ours, theirs)
    interval = known.confidence_interval()
    assert found.difference == pytest.approx((ours - theirs).mean())
    assert found.p == pytest.approx(known.pvalue)
    assert found.interval == pytest.approx((interval.high - interval.low) / 2)


def test_seeds_that_all_say_the_same():
    one = np.array([0.5, 0.25, 0.75])
    assert paired(one, one) == Paired(3, 0.0, 0.0, 1.0)
    assert paired(one + 0.125, one) == Paired(3, 0.125, 0.0, 0.0)


def test_one_or_two_seeds_have_a_difference_but_no_interval():
    assert paired(np.array([0.75]), np.array([0.5])) == Paired(1, 0.25, None, None)
    assert paired(np.array([0.75, 1.0]), np.array([0.5, 0.25])) == Paired(2, 0.5, None, None)


def test_a_table_of_two_seeds_has_no_interval(write):
    ends = {"fedavg": (0.5, 0.9), "fedgbo": (0.8, 0.95)}
    runs = [write(one, seed, [0.1, ends[one["name"]][seed]]) for one in (FEDAVG, FEDGBO) for seed in range(2)]
    assert "±" not in str(cost_lines(summarise(group_runs(runs)), against=True))
    third = [write(FEDAVG, 2, [0.1, 0.7]), write(FEDGBO, 2, [0.1, 0.9])]
    lines = cost_lines(summarise(group_runs([*runs, *third])), against=True)
    assert [cell.ours for row in lines for cell in row if "±" in cell.ours] == [
        "70.0 ± 49.7",
        "88.3 ± 19.0",
        "+18.3 ± 31.3",
    ]


def test_a_speed_up_below_one_is_slower(write):
    lines = cost_lines(
        summarise(group_runs([write(FEDAVG, 0, [0.1, 0.5]), write(FEDGBO, 0, [0.1, 0.4, 0.6])])), against=True
    )
    row = dict(zip(cost_columns(against=True), (cell.ours for cell in lines[1]), strict=True))
    assert (row["Rounds to match FedAvg"], row["Speed-up"]) == ("20", "0.5x")


def test_lists_that_do_not_fit():
    with pytest.raises(ConfigError, match="of the same seeds"):
        paired(np.zeros(2), np.zeros(3))


def test_only_common_seeds_count_each_at_its_own_best_round(write):
    runs = [write(FEDAVG, 0, [0.1, 0.4, 0.5]), write(FEDAVG, 1, [0.1, 0.5, 0.7])]
    runs += [write(FEDGBO, 1, [0.1, 0.9, 0.6]), write(FEDGBO, 2, [0.1, 0.7, 0.6])]
    average, ours = summarise(group_runs(runs))
    assert average.versus is None
    assert ours.versus.seeds == 1
    assert ours.versus.difference == pytest.approx(0.9 - 0.7)
    assert summarise(group_runs([*runs[:2], runs[3]]))[1].versus is None


def test_best_and_match(write):
    runs = [
        write(FEDAVG, 0, [0.1, 0.4, 0.6, 0.7]),
        write(FEDAVG, 1, [0.1, 0.4, 0.8, 0.9]),
        write(FEDGBO, 0, [0.1, 0.8, 0.9, 0.85]),
        write(FEDGBO, 1, [0.1, 0.9, 0.9, 0.85]),
    ]
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["fedavg", "fedgbo-sgdm"]
    avg, gbo = summarise(groups)
    assert avg.accuracy == pytest.approx(0.8)
    assert avg.best.round == 30
    assert avg.interval is None  # two seeds
    assert gbo.accuracy == pytest.approx(0.9)
    assert gbo.best.round == 20
    assert gbo.best.upload_bytes == 2000
    assert gbo.match.round == 10
    assert gbo.match.flops == 1e7


def test_an_equal_accuracy_matches_whatever_its_last_bit(write):
    groups = group_runs([write(FEDAVG, 0, [0.1, 0.2, 0.1 + 0.2]), write(FEDGBO, 0, [0.1, 0.3, 0.2])])
    assert 0.3 < 0.1 + 0.2
    assert summarise(groups)[1].match.round == 10


def test_an_accuracy_that_was_there_before_the_first_round(write):
    """There is no number of rounds to divide by."""
    rows = summarise(group_runs([write(FEDAVG, 0, [0.5, 0.2]), write(FEDGBO, 0, [0.5, 0.3])]))
    assert conclusion(rows) == ["FedGBO had FedAvg's best accuracy before the first round (50.0%), one seed."]


def test_never_matched_and_no_baseline(write):
    low = write(FEDGBO, 0, [0.1, 0.2])
    assert summarise(group_runs([low]))[0].match is None
    assert summarise(group_runs([write(FEDAVG, 0, [0.1, 0.5]), low]))[1].match is None
    assert summarise(group_runs([low]))[0].interval is None


def test_runs_of_different_length_are_compared_where_both_are(write):
    group = group_runs([write(FEDAVG, 0, [0.1, 0.2, 0.9]), write(FEDAVG, 1, [0.1, 0.4])])[0]
    assert group.rounds.tolist() == [0, 10]
    assert group.accuracy.tolist() == [[0.1, 0.2], [0.1, 0.4]]


def test_students_t():
    values = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    assert confidence(values)[0] == pytest.approx(2.7764 * np.sqrt(2.5 / 5), rel=1e-4)
    assert np.isnan(confidence(values[:2])[0])


def test_a_run_without_accuracy_is_named(write):
    with pytest.raises(fedgbo.RunFolderError, match="has no accuracy to show"):
        group_runs([write(FEDAVG, 0, [])])
