"""Paired comparisons by hand and against scipy's own test; differences at each algorithm's best round."""

import numpy as np
import pytest
from scipy import stats

from fedgbo.core.errors import ConfigError
from fedgbo.reports.comparison import Paired, paired, summarise
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
    one = np.array([0.5, 0.25])
    assert paired(one, one) == Paired(2, 0.0, 0.0, 1.0)
    assert paired(one + 0.125, one) == Paired(2, 0.125, 0.0, 0.0)


def test_a_single_seed_has_a_difference_but_no_interval():
    assert paired(np.array([0.75]), np.array([0.5])) == Paired(1, 0.25, None, None)


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
