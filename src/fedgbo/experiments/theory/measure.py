"""FedGBO with SGDm on quadratics with known constants, compared with the bound; charts of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from fedgbo.algorithms import FedGBO
from fedgbo.core import whole
from fedgbo.experiments.theory.bound import (
    Bound,
    Condition,
    Problem,
    Training,
    best_c,
    corollary_step,
    perturbation,
    step_of,
    theorem,
)
from fedgbo.optimisers import SGDm
from fedgbo.reports.charts import altair, titled
from fedgbo.reports.palette import DASHES, OTHERS
from fedgbo.runs.loop import run
from fedgbo.runs.round import Progress
from fedgbo.tasks.quadratic import Floats, Quadratics

ROUNDING = 1 + 1e-6  # of a ratio of two small norms
POINTS = 60  # of a curve

ChartRow = dict[str, Any]  # rounds, value, and the names of a colour and a dash


@dataclass(frozen=True)
class Measurement:
    """A measured mean over seeds, and the bound."""

    training: Training
    seeds: int
    measured: float  # the mean of ‖∇F(x_t)‖², t weighted as in the theorem
    bound: Bound
    checks: tuple[Condition, ...]  # of the assumptions, on all observed gradients, and of the bound itself

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def known_problem(quadratics: Quadratics) -> Problem:
    """Return the constants of the task's objective, with the task's minibatches."""
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
    """Return the trainings to measure, with Corollary 1's step for each T; raise where Theorem 1 does not apply."""
    trainings = []
    for beta, t in product(betas, rounds):
        checked = Training(beta, local_steps, t, 1.0)  # validates β and T before the formulas use them
        training = replace(checked, step=corollary_step(best_c(problem, beta) if c is None else c, beta, t))
        theorem(problem, training)
        trainings.append(training)
    return trainings


def measure(quadratics: Quadratics, problem: Problem, training: Training, seeds: int = 1) -> Measurement:
    """Run FedGBO once for each seed, and compare every round's gradients with the constants and the bound."""
    whole("seeds", seeds)
    bound = theorem(problem, training)
    runs = [_observe(quadratics, training, seed) for seed in range(seeds)]
    measured = float(np.mean([mean_square for mean_square, _ in runs]))
    drifts = [drift for _, of_run in runs for drift in of_run]
    largest = {key: max(drift[key] for drift in drifts) for key in ("largest", "smoothness", "error")}
    limits = (
        ("largest gradient, R", largest["largest"], problem.gradient),
        ("smoothness seen, L", largest["smoothness"], problem.smoothness * ROUNDING),
        ("largest ‖e_t‖, η̃ √Y", largest["error"], training.step * math.sqrt(perturbation(problem, training))),
        ("measured mean of ‖∇F(x_t)‖², the bound", measured, bound.total),
    )
    return Measurement(training, seeds, measured, bound, tuple(Condition(*limit, at_least=False) for limit in limits))


def _observe(quadratics: Quadratics, training: Training, seed: int) -> tuple[float, list[dict[str, float]]]:
    """Return the weighted mean of ‖∇F(x_t)‖², and the drift of every round."""
    squares: list[float] = []

    def look(progress: Progress) -> None:
        squares.append(float(np.sum(quadratics.gradient(progress.state.params.numpy()) ** 2)))

    result = run(
        quadratics.task(),
        FedGBO(SGDm(lr=training.lr, beta=training.beta)),
        rounds=training.rounds,
        local_steps=training.local_steps,
        seed=seed,
        eval_every=1,  # so that records have the drift of each round, not a mean
        callbacks=[look],
        progress=False,
        metrics=("drift",),
    )
    drifts = [record.drift for record in result.history if record.drift is not None]
    return weighted_mean(squares[:-1], training.beta), drifts  # t = 0 ... T - 1


def weighted_mean(squares: Sequence[float], beta: float) -> float:
    """Return the mean of values at t = 0 ... T - 1 with weights 1 - β^(T - t)."""
    weights: Floats = 1 - beta ** np.arange(len(squares), 0, -1, dtype=np.float64)
    return float(np.average(squares, weights=weights))


def bound_rows(
    problem: Problem,
    betas: Sequence[float],
    local_steps: Sequence[int],
    most: int,
    *,
    lr: float | None = None,
    c: float | None = None,
    lipschitz: float | None = None,
) -> list[ChartRow]:
    """Return the curves of Theorem 1 up to `most` rounds, with `lr` or with Corollary 1's learning rate for each T."""
    rows: list[ChartRow] = []
    for beta, k in product(betas, local_steps):
        least = math.floor(Training(beta, 1, 1, 1.0).horizon) + 1
        for t in sorted({round(t) for t in np.geomspace(least, max(least, most), POINTS)}):
            step = step_of(lr, beta, k) if lr else corollary_step(c or best_c(problem, beta), beta, t)
            value = theorem(problem, Training(beta, k, t, step, lipschitz)).total
            rows.append({"rounds": t, "value": value, "colour": f"β = {beta:g}", "dash": f"K = {k}"})
    return rows


def measured_rows(measurements: Sequence[Measurement]) -> list[ChartRow]:
    """Return the measured means and their bounds."""
    return [
        {"rounds": m.training.rounds, "value": value, "colour": f"β = {m.training.beta:g}", "dash": name}
        for m in measurements
        for name, value in (("measured", m.measured), ("Theorem 1", m.bound.total))
    ]


def bound_chart(rows: Sequence[ChartRow], title: str, subtitle: str, *, points: bool = False) -> Any:
    """Return an altair chart of mean squared gradient norms against rounds, both on logarithmic axes."""
    alt = altair()
    legend = alt.Legend(title=None, symbolType="stroke")
    colours, dashes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("colour", "dash"))
    colour_scale = alt.Scale(domain=colours, range=[OTHERS[i % len(OTHERS)] for i in range(len(colours))])
    dash_scale = alt.Scale(domain=dashes, range=[DASHES[i % len(DASHES)] for i in range(len(dashes))])
    ticks = {"values": sorted({row["rounds"] for row in rows})} if points else {}
    across = alt.X("rounds:Q", title="communication rounds T", scale=alt.Scale(type="log", nice=False))
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=across.axis(**ticks),
        y=alt.Y("value:Q", title="E ‖∇F(xₜ)‖²", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
        color=alt.Color("colour:N", scale=colour_scale, legend=legend),
    )
    chart = base.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("dash:N", scale=dash_scale, legend=legend))
    if points:
        chart = chart + base.mark_point(filled=True, size=40, opacity=1)
    return titled(chart.properties(width=560, height=360), title, subtitle)
