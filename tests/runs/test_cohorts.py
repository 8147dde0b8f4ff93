import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgbo.core.random import stream
from fedgbo.engines.layers.native import library
from fedgbo.runs import cohorts
from fedgbo.runs.cohorts import DRAWN, LARGEST, sample


def drawn(clients, size, seed, t):
    """What the stream of that name draws."""
    return sorted(stream(seed, "cohort", t).choice(clients, size, replace=False).tolist())


def test_cohorts_are_uniform_without_replacement():
    cohorts = [sample(10, 3, seed=0, t=t) for t in range(2000)]
    assert all(len(set(cohort)) == 3 and cohort == sorted(cohort) for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=10)
    assert (abs(counts - 600) < 5 * np.sqrt(600 * 0.7)).all()


@pytest.mark.parametrize("size", [1, 3, 700, 1024, 2000])
def test_cohorts_do_not_depend_on_which_are_drawn_together(size):
    for t in (0, 1, 340, 341, 342, 1023, 1024, 5000, 3):
        assert sample(3000, size, seed=7, t=t) == drawn(3000, size, 7, t)
        sample(3000, size, seed=7, t=t).clear()  # what a caller does to it is the caller's


@given(
    clients=st.integers(1, 30_000) | st.integers(1, 2**33),
    size=st.integers(1, 600),
    seed=st.integers(0, 2**64 - 1) | st.integers(0, 3),
    t=st.integers(0, 100_000) | st.integers(2**32 - 2 * DRAWN, 2**32 + 2 * DRAWN),
)
def test_a_cohort_is_what_its_stream_draws(clients, size, seed, t):
    size = min(size, clients)
    assert sample(clients, size, seed, t) == drawn(clients, size, seed, t)


@pytest.mark.parametrize("clients", [LARGEST, 10_000, 10_001, 12_800, 2**32 - 1, 2**32])
@pytest.mark.parametrize("size", [1, LARGEST - 1, LARGEST, LARGEST + 1])
def test_where_numpy_draws_in_other_ways(clients, size):
    size = min(size, clients)
    for t in (0, 2 * DRAWN):
        assert sample(clients, size, 5, t) == drawn(clients, size, 5, t)


@pytest.fixture
def asked(monkeypatch):
    """The rounds that numpy was asked for."""
    rounds, real = [], cohorts._drawn
    monkeypatch.setattr(cohorts, "_drawn", lambda *name: rounds.append(name[-1]) or real(*name))
    cohorts._cohorts.cache_clear()
    return rounds


@pytest.mark.skipif(library() is None, reason="no C compiler here")
def test_after_the_first_rounds_the_c_loop_draws(asked):
    together = DRAWN // 7
    assert sample(500, 7, 11, 5000) == drawn(500, 7, 11, 5000)
    assert asked == [5000 // together * together]
    sample(500, 7, 11, 0)
    assert asked[1:] == list(range(together))


def test_if_numpy_draws_in_another_way_one_day_the_c_loop_is_left_alone(monkeypatch):
    monkeypatch.setattr(cohorts, "_drawn", lambda clients, size, seed, t: np.arange(size) + t % 2)
    cohorts._cohorts.cache_clear()
    assert [sample(500, 3, 0, t) for t in (5000, 5001)] == [[0, 1, 2], [1, 2, 3]]
    cohorts._cohorts.cache_clear()


def test_without_a_compiler_numpy_draws(monkeypatch):
    monkeypatch.setattr(cohorts, "library", lambda: None)
    cohorts._cohorts.cache_clear()
    assert sample(500, 7, 11, 5000) == drawn(500, 7, 11, 5000)
    cohorts._cohorts.cache_clear()
