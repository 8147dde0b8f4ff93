"""Drift by hand, against a slow reference on quadratics, and beside runs that do not measure it."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from fedgbo.engines.drift import ClientSteps, CohortDrift, MeasuringEngine, PairwiseCosine
from fedgbo.engines.one_call import SparseDescent
from fedgbo.engines.plain import PlainEngine
from fedgbo.engines.select import engine_for
from fedgbo.native import library
from fedgbo.runs.checkpoint import digest
from fedgbo.tasks import TASKS
from fedgbo.tasks.quadratic import Quadratics
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES, train
from tests.engines.sparse_tasks import sparse_task


def cosine(vectors):
    pairwise = PairwiseCosine()
    for vector in vectors:
        pairwise.add(torch.tensor(vector, dtype=torch.float64))
    return pairwise.value()


@pytest.mark.parametrize(
    ("vectors", "distance"),
    [
        ([[1, 0], [0, 3]], 1),
        ([[2, 0], [-1, 0]], 2),
        ([[1, 1], [5, 5], [0.1, 0.1]], 0),
        ([[1, 0], [0, 1], [-1, 0]], (1 + 2 + 1) / 3),
        ([[1, 0], [0, 0]], 1),  # no direction
        ([[1, 2]], 0),  # no pair
        ([], 0),
    ],
)
def test_pairwise_cosine_by_hand(vectors, distance):
    assert cosine(vectors) == pytest.approx(distance, abs=1e-15)


@given(arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=st.floats(-5, 5)))
def test_the_sum_of_directions_is_enough_for_all_pairs(vectors):
    vectors[:, 0] += 6 * np.sign(vectors[:, 0] + 1e-9)  # none of them 0
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [1 - units[i] @ units[j] for i in range(len(units)) for j in range(i)]
    assert cosine(vectors) == pytest.approx(np.mean(pairs), abs=1e-14)


def test_a_round_by_hand():
    """x_t = (0, 0), two clients, K = 2, U(g) = g / 2; each gradient is y - b with b of its minibatch."""
    drift = CohortDrift(torch.zeros(2))
    for batches in ([(2.0, 0.0), (4.0, 0.0)], [(0.0, 4.0), (0.0, 4.0)]):
        y, steps = torch.zeros(2), ClientSteps(torch.zeros(2))
        for b in map(torch.tensor, batches):
            steps.add(y, y - b, -b)
            y = y - (y - b) / 2
        drift.add(-y, steps)
    got = drift.value([2, 2])
    # clients' models: (0,0) -> (1,0) -> (2.5,0) and (0,0) -> (0,2) -> (0,3); references -b
    assert got["cosine"] == got["update_cosine"] == pytest.approx(1)
    assert got["error"] == pytest.approx(math.hypot(1, 2) / 4)  # sum of y_{k-1} - x is (1, 2); K |S| = 4
    assert got["gradient"] == pytest.approx(math.hypot(6, 8) / 4)
    assert got["smoothness"] == pytest.approx(1)
    assert got["largest"] == 4
    assert got["noise"] == pytest.approx(math.sqrt((1 + 1 + 0) / 2))  # client 0: 2 and 4 about 3, divided by K - 1
    between = (9 + 16) / 2 - (36 + 64) / 16
    heterogeneity = 2 * between - 1 / 2  # M / (M - 1), less what the noise of two minibatches makes
    assert got["heterogeneity"] == pytest.approx(math.sqrt(heterogeneity))
    # B η = 1/2, K = 2: (3) is L² (B η K)² (‖g‖² + G² + σ²/K)
    assert got["bound"] == pytest.approx(math.sqrt(100 / 16 + heterogeneity + 1 / 2))


def test_a_gradient_that_is_no_step_does_not_count_as_one():
    """MimeXlite takes one at x_t besides: K of equation (3) stays the number of steps."""
    with_it, without = CohortDrift(torch.zeros(1)), CohortDrift(torch.zeros(1))
    for drift, places in ((with_it, [0.0, 0.0, 1.0]), (without, [0.0, 1.0])):
        steps = ClientSteps(torch.zeros(1))
        for y in map(torch.tensor, places):
            steps.add(y.reshape(1), (y - 2).reshape(1), torch.tensor([-2.0]))
        drift.add(torch.tensor([-1.5]), steps)
    assert with_it.value([2]) == without.value([2])
    assert without.value([2])["bound"] == pytest.approx(2)  # L = 1, B η = 1/2, K = 2, ‖g‖ = 2, one client without noise


class Recording(fedgbo.FedGBO):
    """FedGBO that keeps where its gradients were taken."""

    places: ClassVar[list[torch.Tensor]] = []

    def client_update(self, down, client):
        y = down.params
        for _ in range(client.steps):
            self.places.append(y)
            y = self.optimiser.update(y, down.stats, client.gradient(y))
        return fedgbo.State(down.params - y)


def test_equation_2_on_quadratics():
    """There, ∇f_i(y; ξ) - ∇f_i(x; ξ) = A_i (y - x), whatever the minibatch."""
    quadratics = Quadratics.draw(4, 6, 8, 1.0, 1.0, 10.0, 0)
    task, algorithm = quadratics.task(), Recording(fedgbo.SGDm(lr=0.2, beta=0.5))
    engine = MeasuringEngine(PlainEngine(task, algorithm, 0), algorithm, gradients=True)
    Recording.places.clear()
    x = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    m = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=torch.float64)
    cohort, steps = [1, 3, 4], [3, 5, 2]
    got = train(engine, algorithm, cohort, steps, down=fedgbo.State(x, {"m": m}))
    clients = [client for client, k in zip(cohort, steps, strict=True) for _ in range(k)]
    moves = [quadratics.curvatures[c] * (y - x).numpy() for c, y in zip(clients, Recording.places, strict=True)]
    assert got.drift["error"] == pytest.approx(np.linalg.norm(np.sum(moves, axis=0) / 10), rel=1e-12)
    ratios = [np.linalg.norm(m) / (y - x).norm() for m, y in zip(moves, Recording.places, strict=True) if m.any()]
    assert got.drift["smoothness"] == pytest.approx(float(max(ratios)))
    # x_{t+1} = x_t - η K (β m + (1 - β) (g_t + e_t)): the mean number of steps is 10 / 3
    perturbed = ((got.mean.params / (0.2 * 10 / 3) - 0.5 * m) / 0.5).norm()
    assert abs(perturbed - got.drift["gradient"]) <= got.drift["error"]


def test_estimates_come_near_the_true_constants():
    quadratics = Quadratics.draw(6, 200, 20, 2.0, 1.0, 1.0, 0)  # one curvature: G and σ do not depend on x
    result = fedgbo.run(
        quadratics.task(), fedgbo.FedAvg(fedgbo.SGD(lr=0.01)), rounds=40, local_steps=4, metrics="drift"
    )  # fmt: skip
    records = [record.drift for record in result.history if record.drift]
    mean_square = {name: np.mean([r[name] ** 2 for r in records]) for name in ("heterogeneity", "noise")}
    assert mean_square["heterogeneity"] == pytest.approx(quadratics.heterogeneity**2, rel=0.2)
    assert mean_square["noise"] == pytest.approx(20 / 19 * np.mean(sample_variances(quadratics)) / 5, rel=0.1)
    assert all(r["largest"] <= quadratics.largest_gradient for r in records)
    assert all(r["smoothness"] == pytest.approx(1) for r in records)
    assert all(0 < r["error"] <= r["bound"] for r in records)


def sample_variances(quadratics):
    return ((quadratics.minimisers - quadratics.minimisers.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1)


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
    drifts = with_and_without(make_task(batch_size=4, clients_per_round=3), EXAMPLES[name])
    assert all(drift["error"] > 0 and 0 < drift["cosine"] < 2 and drift["bound"] > 0 for drift in drifts)


def test_dropout_is_the_same_for_both_gradients():
    task = make_task(
        model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), batch_size=4
    )  # fmt: skip
    drifts = with_and_without(task, EXAMPLES["fedgbo"])
    assert all(drift["error"] > 0 for drift in drifts)
    still = fedgbo.FedAvg(fedgbo.SGD(lr=1e-12))  # y stays at x: only another dropout mask could make a difference
    assert fedgbo.run(task, still, rounds=1, metrics="drift").history[-1].drift["error"] < 1e-9


def test_the_textbook_loop_is_measured_with_torchs_own_layers():
    """At y = x both gradients are computed in the same way, so that they are the same to the bit."""
    task = replace(TASKS["digits"](), clients_per_round=2, batch_size=20)
    assert with_and_without(task, EXAMPLES["fedgbo"], engine="plain")[0]["error"] > 0
    one_step = {"rounds": 1, "local_steps": 1, "metrics": "drift"}
    for engine in ("plain", "auto"):
        record = fedgbo.run(task, EXAMPLES["fedavg"], **one_step, engine=engine).history[-1]
        assert record.drift["error"] == 0
        assert record.drift["gradient"] > 0


@pytest.mark.parametrize("name", ["fedavg", "mimelite"])
def test_augmentation_is_the_same_for_both_gradients(name):
    task = TASKS["cifar100-synthetic"](clients=2, test_samples=4)
    settings = {"rounds": 1, "local_steps": 2}
    small = fedgbo.Task("small", task.data, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 100)), 1, 4)
    drift = with_and_without(small, EXAMPLES[name], **settings)[0]
    assert 0 < drift["error"] < drift["gradient"]
    sgd = fedgbo.SGD(lr=1e-12)
    still = fedgbo.FedAvg(sgd) if name == "fedavg" else fedgbo.Mimelite(sgd)
    assert fedgbo.run(small, still, metrics="drift", **settings).history[-1].drift["error"] < 1e-6


@pytest.mark.skipif(library() is None, reason="no C compiler: sparse models take their steps in place")
@pytest.mark.parametrize("name", ["fedgbo", "fedprox", "mimelite", "mfl", "scaffold"])
def test_the_sparse_code_still_makes_the_result(name):
    task = sparse_task()
    engine = engine_for(task, EXAMPLES[name], 0, metrics=("drift",))
    assert type(engine) is MeasuringEngine
    assert type(engine.other.descent) is SparseDescent
    assert all(drift["error"] > 0 for drift in with_and_without(task, EXAMPLES[name]))


def test_threads_are_not_used(monkeypatch):
    monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    with_and_without(make_task(batch_size=4), EXAMPLES["fedgbo"], workers=2)


@pytest.mark.parametrize("name", ["fedgbo", "fedprox", "mfl", "mimelite"])
def test_a_network_in_one_call(name):
    """The fast path takes the step within its C call, and a measured client cannot: the bits are the same."""
    network = lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10))  # noqa: E731
    task = replace(TASKS["digits"](), model=network, clients_per_round=3, batch_size=20)
    engine = engine_for(task, EXAMPLES[name], 0, metrics=("drift",))
    assert (engine.plain.model.network is None) == (library() is None)
    assert all(drift["error"] > 0 for drift in with_and_without(task, EXAMPLES[name]))


def test_cosine_alone_needs_no_gradients_more():
    task = make_task(batch_size=4)
    engine = engine_for(task, EXAMPLES["fedgbo"], 0, metrics=("cosine",))
    assert engine._twin is None
    cheap = with_and_without(task, EXAMPLES["fedgbo"], metrics=["cosine"])
    dear = with_and_without(task, EXAMPLES["fedgbo"])
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
        fedgbo.run(make_task(), EXAMPLES["fedgbo"], rounds=1, metrics="drift")
