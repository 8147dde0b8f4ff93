"""FedGBO with SGDm on quadratics whose constants are known, with Corollary 1's learning rate, beside the bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgbo.algorithms import FedGBO
from fedgbo.core.checks import whole
from fedgbo.experiments.theory.bound import Bound, Problem, Training, best_c, corollary_step, perturbation, theorem
from fedgbo.experiments.theory.conditions import Condition
from fedgbo.optimisers import SGDm
from fedgbo.runs.loop import run
from fedgbo.runs.round import Progress
from fedgbo.tasks.quadratic import Floats, Quadratics

ROUNDING = 1 + 1e-6  # of a ratio of two small norms


@dataclass(frozen=True)
class Measurement:
    """What came out, mean over seeds, and what the theorem says."""

    training: Training
    seeds: int
    measured: float  # the mean of ‖∇F(x_t)‖², t weighted as in the theorem
    bound: Bound
    checks: tuple[Condition, ...]  # of the assumptions, on all that was seen, and of the bound itself

    @property
    def holds(self) -> bool:
        """Whether the assumptions were kept and the measured mean is below the bound."""
        return all(check.holds for check in self.checks)


def known_problem(quadratics: Quadratics) -> Problem:
    """Return the constants of the task's objective, with minibatches as the task has them."""
    return Problem(
        smoothness=quadratics.smoothness,
        gradient=quadratics.largest_gradient,
        heterogeneity=quadratics.heterogeneity,
        noise=quadratics.noise(quadratics.task().batch_size or quadratics.minimisers.shape[1]),
        gap=quadratics.gap,
    )


def plan(
    problem: Problem, betas: Sequence[float], rounds: Sequence[int], local_steps: int, c: float | None = None
) -> list[Training]:
    """Return the trainings to measure, each with Corollary 1's step size for its T; C is by default the best for β.

    Raise, before anything is run, where Theorem 1 says nothing.
    """
    trainings = []
    for beta in betas:
        for t in rounds:
            checked = Training(beta, local_steps, t, 1.0)  # before β and T go into a formula
            training = replace(checked, step=corollary_step(best_c(problem, beta) if c is None else c, beta, t))
            theorem(problem, training)
            trainings.append(training)
    return trainings


def measure(quadratics: Quadratics, problem: Problem, training: Training, seeds: int = 1) -> Measurement:
    """Run FedGBO once for each seed, and hold what comes out against the constants and the bound.

    Every round's gradients are watched: that none is larger than R, that none changes faster than L allows, and that
    the perturbation e_t stays below η̃ √Y, is checked on all of them and not taken on trust.
    """
    whole("seeds", seeds)
    bound = theorem(problem, training)
    runs = [_observe(quadratics, training, seed) for seed in range(seeds)]
    measured = float(np.mean([seen.mean_square for seen in runs]))
    error = training.step * math.sqrt(perturbation(problem, training))
    checks = (
        _at_most("largest gradient, R", max(seen.gradient for seen in runs), problem.gradient),
        _at_most("smoothness seen, L", max(seen.smoothness for seen in runs), problem.smoothness * ROUNDING),
        _at_most("largest ‖e_t‖, η̃ √Y", max(seen.error for seen in runs), error),
        _at_most("measured mean of ‖∇F(x_t)‖², the bound", measured, bound.total),
    )
    return Measurement(training, seeds, measured, bound, checks)


@dataclass(frozen=True)
class _Seen:
    mean_square: float
    gradient: float
    smoothness: float
    error: float


def _observe(quadratics: Quadratics, training: Training, seed: int) -> _Seen:
    squares: list[float] = []

    def look(progress: Progress) -> None:
        squares.append(float(np.sum(quadratics.gradient(progress.state.params.numpy()) ** 2)))

    result = run(
        quadratics.task(),
        FedGBO(SGDm(lr=training.lr, beta=training.beta)),
        rounds=training.rounds,
        local_steps=training.local_steps,
        seed=seed,
        eval_every=1,  # so that records have every round's own drift, not a mean
        callbacks=[look],
        metrics=("drift",),
    )
    drifts = [record.drift for record in result.history if record.drift is not None]
    return _Seen(
        mean_square=weighted_mean(squares[:-1], training.beta),  # t = 0 ... T - 1
        gradient=max(drift["largest"] for drift in drifts),
        smoothness=max(drift["smoothness"] for drift in drifts),
        error=max(drift["error"] for drift in drifts),
    )


def weighted_mean(squares: Sequence[float], beta: float) -> float:
    """Return the mean of values at t = 0 ... T - 1 with weights 1 - β^(T - t).

    >>> weighted_mean([1.0, 4.0], beta=0.5)  # weights 3/4 and 1/2
    2.2
    """
    weights: Floats = 1 - beta ** np.arange(len(squares), 0, -1, dtype=np.float64)
    return float(np.average(squares, weights=weights))


def _at_most(name: str, value: float, limit: float) -> Condition:
    return Condition(name, value, limit, at_least=False)
