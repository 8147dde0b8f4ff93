"""Rounds that an engine runs ahead: nobody may be able to tell."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgbo
from fedgbo.engines import sparse
from fedgbo.engines.layers.native import library
from fedgbo.engines.sparse import SparseEngine
from fedgbo.runs import rounds, server
from tests.engines.sparse_tasks import sparse_task

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, and so no rounds ahead")

GBO = fedgbo.FedGBO(fedgbo.SGDm(0.5, 0.8))
ALGORITHMS = [
    fedgbo.FedAvg(fedgbo.SGD(0.5)),
    fedgbo.FedProx(fedgbo.SGD(0.5), 0.3),
    GBO,
    fedgbo.FedGBO(fedgbo.SGDm(0.5, 0.8), objective=fedgbo.Proximal(0.2)),
]


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch):
    """Models of 123 parameters, which by themselves would not be worth it."""
    monkeypatch.setattr(sparse, "WORTH_LOADING", 0)
    monkeypatch.setattr(server, "WORTH_LOADING", 0)


@pytest.fixture
def ahead(monkeypatch):
    """How many rounds the engine ran ahead, each time it was asked."""
    counts, real = [], SparseEngine.ahead

    def noted(self, *question):
        played = real(self, *question)
        counts.append(len(played))
        return played

    monkeypatch.setattr(SparseEngine, "ahead", noted)
    return counts


def run(algorithm=GBO, task=None, rounds=60, **settings):
    """A run, and the state and totals after each of its rounds."""
    seen = []

    def look(progress):
        state = {name: tensor.clone() for name, tensor in progress.state.tensors().items()}
        seen.append((state, progress.ledger._replace(seconds=0.0)))

    callbacks = [look, *settings.pop("callbacks", [])]
    return fedgbo.run(task or sparse_task(), algorithm, rounds=rounds, callbacks=callbacks, **settings), seen


def one_by_one(monkeypatch, *args, **settings):
    with monkeypatch.context() as alone:
        alone.setattr(SparseEngine, "ahead", lambda *question: [])
        return run(*args, **settings)


def check_alike(first, second):
    (result, seen), (other, also_seen) = first, second
    assert len(seen) == len(also_seen)
    for (state, ledger), (expected, totals) in zip(seen, also_seen, strict=True):
        assert ledger == totals
        assert state.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())
    records = [[replace(record, seconds=0.0) for record in one.history] for one in (result, other)]
    assert records[0] == records[1]


@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_the_same_bits_after_every_round(algorithm, dtype, batch_size, monkeypatch, ahead):
    task = sparse_task(batch_size, dtype)
    quick = run(algorithm, task, eval_every=7)
    assert sum(ahead) == 60
    assert max(ahead) == rounds.AHEAD
    check_alike(quick, one_by_one(monkeypatch, algorithm, task, eval_every=7))


def test_no_round_beyond_the_last(ahead):
    run(rounds=10)
    assert ahead == [10]


def test_a_callback_that_stops(monkeypatch, ahead):
    def enough(progress):
        return progress.ledger.round == 13

    settings = {"callbacks": [enough], "eval_every": 50}
    stopped = run(**settings)
    assert ahead == [rounds.AHEAD]
    assert len(stopped[1]) == 14  # with the one before the first round
    check_alike(stopped, one_by_one(monkeypatch, **settings))


def test_a_resumed_run(tmp_path, monkeypatch):
    def enough(progress):
        return progress.ledger.round == 17

    whole, _ = run(rounds=40)
    run(rounds=40, callbacks=[enough], out=tmp_path / "run")
    resumed = fedgbo.run(sparse_task(), GBO, rounds=40, out=tmp_path / "run", resume=True)
    for name, tensor in whole.state.tensors().items():
        assert torch.equal(resumed.state.tensors()[name], tensor)


def test_a_callback_that_writes_into_the_state(monkeypatch):
    def shrink(progress):
        if progress.ledger.round in (5, 30):
            progress.state.params.mul_(0.5)

    changed = run(callbacks=[shrink])
    check_alike(changed, one_by_one(monkeypatch, callbacks=[shrink]))
    assert not torch.equal(changed[0].params, run()[0].params)


@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [(fedgbo.FedAvg(fedgbo.SGD(3e38)), torch.float32), (fedgbo.FedGBO(fedgbo.SGDm(1e308, 0.5)), torch.float64)],
    ids=str,
)
def test_divergence_comes_in_the_same_round_with_the_same_words(algorithm, dtype, monkeypatch):
    words, seen = [], []
    for way in (run, lambda *args, **settings: one_by_one(monkeypatch, *args, **settings)):
        states = []
        with pytest.raises(fedgbo.DivergenceError) as error:
            way(algorithm, sparse_task(dtype=dtype), callbacks=[lambda progress, to=states: to.append(progress)])
        words.append(str(error.value))
        seen.append([progress.ledger.round for progress in states])
    assert words[0] == words[1]
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("algorithm", "local_steps"),
    [
        (fedgbo.FedAvg(fedgbo.SGD(fedgbo.Exponential(0.5, 0.99))), 5),
        (GBO, [5] * 9),
        (GBO, lambda client: 5),
        (fedgbo.FedGBO(fedgbo.Adam(0.1, 0.9)), 5),
    ],
)
def test_other_rounds_are_run_one_by_one(algorithm, local_steps, ahead, monkeypatch):
    quick = run(algorithm, local_steps=local_steps)
    assert not any(ahead)
    assert len(ahead) <= 60 // rounds.AHEAD + 1  # it is not asked in every round
    check_alike(quick, one_by_one(monkeypatch, algorithm, local_steps=local_steps))


@pytest.mark.parametrize(
    ("name", "value"), [("library", lambda: None), ("WORTH_LOADING", 10**6), ("AHEAD_BYTES", 100), ("BLOCK", 4)]
)
def test_where_it_would_not_be_worth_it_or_change_bits(name, value, ahead, monkeypatch):
    monkeypatch.setattr(sparse, name, value)
    run(rounds=5)
    assert ahead == [0]


def test_cohorts_that_are_worth_threads_are_run_one_by_one(ahead, monkeypatch):
    monkeypatch.setattr(sparse, "WORTH_THREADS", 0)
    run(rounds=5, workers=2)
    assert ahead == [0]
    run(rounds=5, workers=1)
    assert ahead == [0, 5]


def test_calls_that_would_take_long_are_cut_short(ahead, monkeypatch):
    monkeypatch.setattr(sparse, "AHEAD_SAMPLES", 5 * 5 * 8 * 3 + 1)  # three rounds of five clients
    run(rounds=7, local_steps=5, workers=1)
    assert ahead == [3, 3, 1]


def test_a_callback_that_writes_in_every_round_costs_little(ahead):
    run(rounds=300, callbacks=[lambda progress: progress.state.params.clamp_(-1, 1) is None])
    assert sum(ahead) < 150


def test_statistics_of_another_type_are_not_rounded(ahead):
    class Fine(fedgbo.SGDm):
        def init(self, params):
            return {"m": torch.zeros_like(params, dtype=torch.float64)}

    run(fedgbo.FedGBO(Fine(0.5, 0.8)), rounds=2)
    assert ahead[0] == 0


def test_a_result_is_nothing_but_its_state():
    result, _ = run()
    for tensor in result.state.tensors().values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_times_add_up():
    took = []
    result = fedgbo.run(sparse_task(), GBO, rounds=60, eval_every=60, callbacks=[lambda p: took.append(p.seconds)])
    rounds_took = [seconds["training"] + seconds["server"] for seconds in took[1:]]
    assert min(rounds_took) > 0
    assert np.isclose(
        result.history[-1].seconds, sum(rounds_took) + sum(s.get("evaluation", 0) for s in took), rtol=0.5
    )
