import pytest

from fedgbo.experiments.tune.plan import score
from fedgbo.runs.record import Record


def curve(*points, losses=False):
    return [Record(r, v, None if losses else v, None, 0, 0, 0.0, 0.0, 0.0) for r, v in points]


def test_each_record_stands_for_the_rounds_before_it():
    run = curve((0, 0.9), (10, 0.2), (20, 0.6), (25, 0.8))
    assert score([run]) == pytest.approx((10 * 0.2 + 10 * 0.6 + 5 * 0.8) / 25)
    assert score([run], "best") == 0.8
    assert score([run], "last") == 0.8
    assert score([curve((0, 0.1), (5, 0.7), (10, 0.3))], "best") == 0.7


def test_a_warm_up_does_not_count():
    run = curve((0, 0.0), (10, 0.2), (20, 0.6), (30, 0.8))
    assert score([run], warm_up=10) == pytest.approx(0.7)
    assert score([run], warm_up=15) == pytest.approx((5 * 0.6 + 10 * 0.8) / 15)
    assert score([curve((0, 0.9), (10, 0.1))], "best", warm_up=10) is None


def test_runs_count_by_their_rounds():
    runs = [curve((0, 0.0), (10, 0.5), (20, 0.5)), curve((0, 0.0), (10, 0.2))]
    assert score(runs) == pytest.approx((20 * 0.5 + 10 * 0.2) / 30)
    assert score([runs[0], curve((0, 0.3))]) == 0.5
    assert score([curve((0, 0.3))]) is None


def test_without_a_metric_a_smaller_loss_is_better():
    assert score([curve((0, 9.0), (10, 2.0), (20, 1.0), losses=True)]) == pytest.approx(-1.5)
