"""`fedgbo theory`: the paper's convergence bound in numbers, and held against what is measured."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgbo.cli.console import clean_errors, err, out, print_whole
from fedgbo.cli.theory_tables import bound_json, bound_table, conditions_table, measured_json, measured_table, rate
from fedgbo.core.errors import ConfigError
from fedgbo.experiments.theory.bound import Problem, Training, best_c, corollary_step, step_of, theorem
from fedgbo.experiments.theory.chart import bound_chart, bound_rows, measured_rows
from fedgbo.experiments.theory.conditions import conditions
from fedgbo.experiments.theory.measure import known_problem, measure, plan
from fedgbo.reports.charts import save_chart
from fedgbo.experiments.theory.bound import Problem, Training, best_c, conditions, corollary_step, step_of, theorem
from fedgbo.experiments.theory.measure import bound_chart, bound_rows, known_problem, measure, measured_rows, plan
from fedgbo.reports.chart import save_chart
from fedgbo.tasks.quadratic import Quadratics

app = typer.Typer(invoke_without_command=True)

FIGURE_BETAS, FIGURE_STEPS = (0.0, 0.5, 0.9, 0.99), (1, 10, 50)
ROUNDS = (25, 50, 100, 200, 400)

JsonOption = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
FigureOption = Annotated[Path | None, typer.Option(help="Draw it too: FILE.png and FILE.svg.", metavar="FILE")]


@app.callback()
def bound(
    context: typer.Context,
    smoothness: Annotated[float, typer.Option(help="L, of the gradients.")] = 1.0,
    gradient: Annotated[float, typer.Option(help="R, the largest norm of a stochastic gradient.")] = 1.0,
    heterogeneity: Annotated[float, typer.Option(help="G, how far clients' gradients are apart.")] = 1.0,
    noise: Annotated[float, typer.Option(help="σ, of minibatch gradients.")] = 1.0,
    gap: Annotated[float, typer.Option(help="F(x_0) - F*.")] = 1.0,
    beta: Annotated[float, typer.Option(help="β, SGDm's decay.")] = 0.9,
    local_steps: Annotated[int, typer.Option(help="K.")] = 10,
    rounds: Annotated[int, typer.Option(help="T.")] = 1000,
    lr: Annotated[float | None, typer.Option(help="η, SGDm's learning rate. By default Corollary 1's.")] = None,
    c: Annotated[float | None, typer.Option("--c", help="C of Corollary 1. By default the best.")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="B. By default 1 / (1 - β).")] = None,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bound the mean squared gradient norm of FedGBO with SGDm by Theorem 1 and Corollary 1, for given constants.

    fedgbo theory --smoothness 2 --gradient 3 --beta 0.9 --rounds 5000

    fedgbo theory --lr 0.001 --figure bound.png

    fedgbo theory measure --figure measured.png
    """
    with clean_errors():
        if context.invoked_subcommand is not None:
            _nothing_given(context)
            return
        _check_place(figure)
        if lr is not None and c is not None:
            raise ConfigError("give --lr or --c, not both: C stands for the learning rate 2 C / (K √T)")
        problem = Problem(smoothness, gradient, heterogeneity, noise, gap)
        training = _training(problem, beta, local_steps, rounds, lr, c, lipschitz)
        checks = conditions(problem, training)
        if as_json:
            out.print_json(json.dumps(bound_json(problem, training, checks)))
        else:
            print_whole(conditions_table(checks))
        found = theorem(problem, training)  # raises where it says nothing
        if not as_json:
            print_whole(bound_table(problem, training, found))
            out.print(f"the {found.dominant} term dominates; {rate(problem, training, fixed=lr is not None)}")
        if figure is not None:
            betas, steps = sorted({*FIGURE_BETAS, beta}), sorted({*FIGURE_STEPS, local_steps})
            rows = bound_rows(problem, betas, steps, 10 * rounds, lr=lr, c=c, lipschitz=lipschitz)
            rule = f"learning rate {lr:g}" if lr is not None else "Corollary 1's learning rate for each T"
            _draw(bound_chart(rows, "Theorem 1's bound", rule), figure)


@app.command("measure")
def measure_command(
    beta: Annotated[list[float] | None, typer.Option(help="β; may be repeated. By default 0 and 0.9.")] = None,
    rounds: Annotated[list[int] | None, typer.Option(help=f"T; may be repeated. By default {ROUNDS}.")] = None,
    local_steps: Annotated[int, typer.Option(help="K.")] = 5,
    seeds: Annotated[int, typer.Option(help="Runs for each β and T.")] = 2,
    c: Annotated[float | None, typer.Option("--c", help="C of Corollary 1. By default the best.")] = None,
    dimension: Annotated[int, typer.Option(help="Of the parameter vector.")] = 10,
    clients: Annotated[int, typer.Option(help="In all; at most 5 take part in a round.")] = 20,
    heterogeneity: Annotated[float, typer.Option(help="How far clients' minimisers are apart.")] = 1.0,
    noise: Annotated[float, typer.Option(help="How far a client's samples are apart.")] = 1.0,
    condition: Annotated[float, typer.Option(help="Largest by smallest eigenvalue of the curvatures.")] = 10.0,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run FedGBO with SGDm on quadratics whose constants are known, and hold the bound against what is measured.

    The learning rate is Corollary 1's for each T. Ends with exit code 1 if an assumption or the bound did not hold.
    """
    with clean_errors():
        _check_place(figure)
        quadratics = Quadratics.draw(dimension, clients, 20, heterogeneity, noise, condition, seed=0)
        problem, results = known_problem(quadratics), []
        for training in plan(problem, beta or (0.0, 0.9), rounds or ROUNDS, local_steps, c):
            if not as_json:
                err.print(f"β = {training.beta:g}, T = {training.rounds}, seeds: {seeds}")
            results.append(measure(quadratics, problem, training, seeds))
        if as_json:
            out.print_json(json.dumps(measured_json(problem, results)))
        else:
            print_whole(measured_table(problem, results))
        if figure is not None:
            subtitle = f"quadratics with known constants, K = {local_steps}, seeds: {seeds}"
            chart = bound_chart(measured_rows(results), "FedGBO-SGDm: measured, and Theorem 1", subtitle, points=True)
            _draw(chart, figure)
    if not all(result.holds for result in results):
        sys.exit(1)


def _nothing_given(context: typer.Context) -> None:
    """Raise if an option stands before the subcommand, which has its own and would not see it."""
    for parameter in context.command.params:
        if context.params.get(parameter.name or "") != parameter.default:
            name, command = max(parameter.opts, key=len), context.invoked_subcommand
            raise ConfigError(f"{name} before {command} does nothing; write it after {command}, if that has it")


def _training(
    problem: Problem, beta: float, k: int, rounds: int, lr: float | None, c: float | None, lipschitz: float | None
) -> Training:
    """Return the training, with η̃ from the learning rate or from Corollary 1."""
    checked = Training(beta, k, rounds, 1.0, lipschitz)  # before β and T go into a formula
    if lr is not None:
        step = step_of(lr, beta, k)
    else:
        step = corollary_step(best_c(problem, beta) if c is None else c, beta, rounds)
    return Training(checked.beta, k, rounds, step, lipschitz)


def _check_place(figure: Path | None) -> None:
    """Raise, before anything is computed, if the picture could not be written."""
    if figure is not None and not figure.parent.is_dir():
        raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}; give a file in a folder that exists")


def _draw(chart: Any, path: Path) -> None:
    for file in save_chart(chart, path):
        err.print(f"picture  {file}")
