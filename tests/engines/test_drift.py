"""Drift by hand, and against a slow reference on quadratics."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedgbo
from fedgbo.engines.drift import ClientSteps, CohortDrift, PairwiseCosine
from fedgbo.engines.measured import MeasuredEngine
from fedgbo.engines.serial import SerialEngine
from fedgbo.tasks.quadratic import Quadratics


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
    engine = MeasuredEngine(SerialEngine(task, algorithm, 0), algorithm, gradients=True)
    Recording.places.clear()
    x = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    m = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=torch.float64)
    cohort, steps = [1, 3, 4], [3, 5, 2]
    got = engine.train(algorithm, fedgbo.State(x, {"m": m}), cohort, steps, t=0)
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
