"""Measuring changes nothing, for every algorithm and engine."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from fedgbo.native import library
from fedgbo.engines.measured import MeasuredEngine
from fedgbo.engines.select import engine_for
from fedgbo.runs.checkpoint import digest
from fedgbo.tasks import TASKS
from tests.algorithms.test_identities import example
from tests.conftest import make_task
from tests.engines.sparse_tasks import sparse_task


def with_and_without(task, algorithm, metrics="drift", **settings):
    settings = {"rounds": 3, "local_steps": 3, "eval_every": 1} | settings
    plain = fedgbo.run(task, algorithm, **settings)
    measured = fedgbo.run(task, algorithm, metrics=metrics, **settings)
    assert digest(plain.state.tensors()) == digest(measured.state.tensors())
    for a, b in zip(plain.history, measured.history, strict=True):
        assert a.drift is None
        assert (a.loss, a.accuracy, a.train_loss) == (b.loss, b.accuracy, b.train_loss)
        assert (a.flops, a.counted_flops, a.upload_bytes) == (b.flops, b.counted_flops, b.upload_bytes)
    assert measured.history[0].drift is None  # before the first round
    return [record.drift for record in measured.history[1:]]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm(name):
    drifts = with_and_without(make_task(batch_size=4, clients_per_round=3), example(name))
    assert all(drift["error"] > 0 and 0 < drift["cosine"] < 2 and drift["bound"] > 0 for drift in drifts)


def test_dropout_is_the_same_for_both_gradients():
    task = make_task(
        model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), batch_size=4
    )  # fmt: skip
    drifts = with_and_without(task, example("fedgbo"))
    assert all(drift["error"] > 0 for drift in drifts)
    still = fedgbo.FedAvg(fedgbo.SGD(lr=1e-12))  # y stays at x: only another dropout mask could make a difference
    assert fedgbo.run(task, still, rounds=1, metrics="drift").history[-1].drift["error"] < 1e-9


@pytest.mark.parametrize("name", ["fedavg", "mimelite"])
def test_augmentation_is_the_same_for_both_gradients(name):
    task = TASKS["cifar100-synthetic"](clients=2, test_samples=4)
    settings = {"rounds": 1, "local_steps": 2}
    small = fedgbo.Task("small", task.data, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 100)), 1, 4)
    drift = with_and_without(small, example(name), **settings)[0]
    assert 0 < drift["error"] < drift["gradient"]
    sgd = fedgbo.SGD(lr=1e-12)
    still = fedgbo.FedAvg(sgd) if name == "fedavg" else fedgbo.Mimelite(sgd)
    assert fedgbo.run(small, still, metrics="drift", **settings).history[-1].drift["error"] < 1e-6


@pytest.mark.parametrize("name", ["fedgbo", "fedprox", "mimelite", "mfl"])
def test_the_sparse_engine_still_makes_the_result(name):
    task = sparse_task()
    engine = engine_for(task, example(name), 0, metrics=("drift",))
    assert type(engine) is MeasuredEngine
    assert type(engine.other).__name__ == ("SparseEngine" if name != "mfl" else "NoneType")
    assert all(drift["error"] > 0 for drift in with_and_without(task, example(name)))


def test_the_parallel_engine_gives_way(monkeypatch):
    monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    with_and_without(make_task(batch_size=4), example("fedgbo"), workers=2)


@pytest.mark.parametrize("name", ["fedgbo", "fedprox", "mfl", "mimelite"])
def test_a_network_in_one_call(name):
    """The fast path takes the step within its C call, and a measured client cannot: the bits are the same."""
    network = lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10))  # noqa: E731
    task = replace(TASKS["digits"](), model=network, clients_per_round=3, batch_size=20)
    engine = engine_for(task, example(name), 0, metrics=("drift",))
    assert (engine.plain.model._runner is None) == (library() is None)
    assert all(drift["error"] > 0 for drift in with_and_without(task, example(name)))


def test_cosine_alone_needs_no_gradients_more():
    task = make_task(batch_size=4)
    engine = engine_for(task, example("fedgbo"), 0, metrics=("cosine",))
    assert engine._twin is None
    cheap = with_and_without(task, example("fedgbo"), metrics=["cosine"])
    dear = with_and_without(task, example("fedgbo"))
    assert cheap == [{key: drift[key] for key in ("cosine", "update_cosine")} for drift in dear]


def test_with_beta_near_1_clients_hardly_differ():
    """Figure 1: the larger β, the nearer the clients' models."""
    task = make_task(batch_size=4)
    means = []
    for beta in (0.0, 0.9, 0.99):
        result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=beta)), rounds=10, eval_every=10,
                            metrics=["cosine"])  # fmt: skip
        means.append(result.history[-1].drift["cosine"])
    assert means[0] > 10 * means[1] > 100 * means[2] > 0


class Nothing(fedgbo.FederatedAlgorithm):
    def client_update(self, down, client):
        return fedgbo.State(torch.zeros_like(down.params))


def test_an_algorithm_without_gradients_has_cosines_only():
    assert with_and_without(make_task(), Nothing()) == [{"cosine": pytest.approx(0), "update_cosine": 1.0}] * 3


def test_numbers_that_are_not_finite_stop_the_run(monkeypatch):
    monkeypatch.setattr("fedgbo.engines.drift.CohortDrift.value", lambda *_: {"cosine": 0.0, "error": float("nan")})
    with pytest.raises(fedgbo.DivergenceError, match="the drift's error is nan in round 1"):
        fedgbo.run(make_task(), example("fedgbo"), rounds=1, metrics="drift")
