"""Theorem 1 does not need convexity: the bound on a nonconvex objective whose constants hold everywhere.

A sample's loss is the sum over coordinates of φ(x - b), φ(u) = ½ u² / (1 + u²). Its derivatives are
φ'(u) = u / (1 + u²)², at most 3√3 / 16, and φ''(u) = (1 - 3u²) / (1 + u²)³, between -1/4 and 1.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from torch import Tensor

from fedgbo import FederatedData, Task
from fedgbo.experiments.theory.bound import Problem
from fedgbo.experiments.theory.measure import measure, plan
from fedgbo.tasks.quadratic import Scaled

DIMENSION, CLIENTS, SAMPLES = 10, 20, 20
R = math.sqrt(DIMENSION) * 3 * math.sqrt(3) / 16


def saturating(outputs: Tensor, targets: Tensor) -> Tensor:
    squares = (outputs - targets).square()
    return (squares / (1 + squares)).sum(dim=1).mean() / 2


@dataclass(frozen=True)
class Saturating:
    """Clients with minimisers b_ij, spread so far that the mean of their losses has several local minima."""

    minimisers: np.ndarray  # (clients, samples, d)

    def task(self) -> Task:
        targets = self.minimisers.reshape(-1, DIMENSION)
        data = FederatedData.from_clients(
            train=[(np.ones_like(b), b) for b in self.minimisers], test=(targets, targets)
        )
        return Task("saturating", data, lambda: Scaled(DIMENSION), loss=saturating, metric=None,
                    clients_per_round=5, batch_size=5)  # fmt: skip

    def gradient(self, x: np.ndarray) -> np.ndarray:
        u = x - self.minimisers
        return (u / (1 + u**2) ** 2).mean(axis=(0, 1))

    @property
    def gap(self) -> float:  # F* >= 0
        return float((self.minimisers**2 / (1 + self.minimisers**2)).sum(axis=2).mean() / 2)


def drawn() -> Saturating:
    rng = np.random.default_rng(0)
    return Saturating(
        rng.normal(size=(CLIENTS, 1, DIMENSION)) * 2 + 0.3 * rng.normal(size=(CLIENTS, SAMPLES, DIMENSION))
    )


def test_the_objective_is_not_convex():
    problem, line = drawn(), np.linspace(-6, 6, 400)
    x = np.zeros((len(line), DIMENSION))
    x[:, 0] = line
    slopes = np.array([problem.gradient(point)[0] for point in x])
    assert (np.diff(slopes) < 0).any()
    assert np.abs(np.diff(slopes) / np.diff(line)).max() <= 1


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_the_bound_holds(beta):
    objective = drawn()
    # ‖∇f_i - ∇F‖ and the noise of a minibatch are at most R in the mean square, as all gradients are at most R
    problem = Problem(smoothness=1.0, gradient=R, heterogeneity=R, noise=R, gap=objective.gap)
    for c in (None, 2.0):  # the step that makes the bound smallest, and one that moves the model far
        (training,) = plan(problem, [beta], [30], local_steps=5, c=c)
        found = measure(objective, problem, training)
        print(f"beta {beta}, C {c}: measured {found.measured:.3g}, bound {found.bound.total:.3g}")
        assert found.holds, found.checks
        assert 0 < found.measured < found.bound.total
