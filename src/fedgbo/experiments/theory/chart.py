"""Pictures of the bound: against T, for several β and K, alone or over what was measured."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgbo.experiments.theory.bound import Problem, Training, best_c, corollary_step, step_of, theorem
from fedgbo.experiments.theory.measure import Measurement
from fedgbo.reports.charts import COLOURS, DASHES, altair, titled

POINTS = 60  # of a curve

Row = dict[str, Any]  # rounds, value, and the names of a colour and a dash


def bound_rows(
    problem: Problem,
    betas: Sequence[float],
    local_steps: Sequence[int],
    most: int,
    *,
    lr: float | None = None,
    c: float | None = None,
    lipschitz: float | None = None,
) -> list[Row]:
    """Return the curves of Theorem 1 up to `most` rounds, from where it says something: with a fixed learning rate or,
    without one, with Corollary 1's for each T.
    """
    rows: list[Row] = []
    for beta in betas:
        for k in local_steps:
            for rounds in _rounds(beta, most):
                step = step_of(lr, beta, k) if lr else corollary_step(c or best_c(problem, beta), beta, rounds)
                value = theorem(problem, Training(beta, k, rounds, step, lipschitz)).total
                rows.append({"rounds": rounds, "value": value, "colour": f"β = {beta:g}", "dash": f"K = {k}"})
    return rows


def measured_rows(measurements: Sequence[Measurement]) -> list[Row]:
    """Return the measured means and the bounds over them."""
    return [
        {"rounds": m.training.rounds, "value": value, "colour": f"β = {m.training.beta:g}", "dash": name}
        for m in measurements
        for name, value in (("measured", m.measured), ("Theorem 1", m.bound.total))
    ]


def bound_chart(rows: Sequence[Row], title: str, subtitle: str, *, points: bool = False) -> Any:
    """Return an altair chart of mean squared gradient norms against rounds, both on logarithmic axes."""
    alt = altair()
    legend = alt.Legend(title=None, symbolType="stroke")
    colours, dashes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("colour", "dash"))
    colour_scale = alt.Scale(domain=colours, range=COLOURS[: len(colours)])
    dash_scale = alt.Scale(domain=dashes, range=DASHES[: len(dashes)])
    table = alt.Data(values=list(rows))
    base = alt.Chart(table).encode(
        x=alt.X("rounds:Q", title="communication rounds T", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title="E ‖∇F(x_t)‖²", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g")),
        color=alt.Color("colour:N", scale=colour_scale, legend=legend),
    )
    dash = alt.StrokeDash("dash:N", scale=dash_scale, legend=legend)
    chart = base.mark_line(strokeWidth=2).encode(strokeDash=dash)
    whole = chart + base.mark_point(filled=True, size=40, opacity=1) if points else chart
    return titled(whole.properties(width=560, height=360), title, subtitle)


def _rounds(beta: float, most: int) -> list[int]:
    """Return numbers of rounds for which the theorem says something, evenly in their logarithm."""
    least = math.floor(Training(beta, 1, 1, 1.0).horizon) + 1
    return sorted({round(t) for t in np.geomspace(least, max(least, most), POINTS)})
