"""`fedgbo theory`: the paper's convergence bound in numbers, and compared with measurements."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json, print_whole, simple_table
from fedgbo.core import ConfigError
from fedgbo.experiments.theory.bound import (
    Condition,
    Problem,
    Training,
    best_c,
    conditions,
    corollary,
    corollary_step,
    floor,
    step_of,
    theorem,
)
from fedgbo.experiments.theory.measure import (
    Measurement,
    bound_chart,
    bound_rows,
    known_problem,
    measure,
    measured_rows,
    plan,
)
from fedgbo.reports.charts import save_chart
from fedgbo.tasks.quadratic import Quadratics

app = typer.Typer(invoke_without_command=True)

FIGURE_BETAS, FIGURE_STEPS = (0.0, 0.5, 0.9, 0.99), (1, 10, 50)
ROUNDS = (25, 50, 100, 200, 400)
FORMULAS = {
    "start": "2 (1-β) (F(x_0)-F*) / (η̃ T̃)",
    "drift": "T η̃² Y / T̃",
    "momentum": "2 T η̃ L (1+β) (R²+η̃²Y) / (T̃ (1-β)²)",
}

FigureOption = Annotated[Path | None, Option(help="Also draw a picture: FILE.png and FILE.svg.", metavar="FILE")]
COption = Annotated[float | None, Option("--c", help="The constant C of Corollary 1. By default the best one.")]


@app.callback()
def bound(
    context: typer.Context,
    smoothness: Annotated[float, Option(help="The smoothness L of the gradients.")] = 1.0,
    gradient: Annotated[float, Option(help="The largest norm R of a stochastic gradient.")] = 1.0,
    heterogeneity: Annotated[float, Option(help="The heterogeneity G of the clients' gradients.")] = 1.0,
    noise: Annotated[float, Option(help="The standard deviation σ of minibatch gradients.")] = 1.0,
    gap: Annotated[float, Option(help="The gap F(x_0) - F* between the initial and the minimal loss.")] = 1.0,
    beta: Annotated[float, Option(help="The decay β of SGDm.")] = 0.9,
    local_steps: Annotated[int, Option(help="The local steps K of a client in a round.")] = 10,
    rounds: Annotated[int, Option(help="The number of rounds T.")] = 1000,
    lr: Annotated[float | None, Option(help="The learning rate η of SGDm. By default that of Corollary 1.")] = None,
    c: COption = None,
    lipschitz: Annotated[float | None, Option(help="The constant B. By default 1 / (1 - β).")] = None,
    figure: FigureOption = None,
    as_json: opt.Json = False,
) -> None:
    """Bound the mean squared gradient norm of FedGBO with SGDm by Theorem 1 and Corollary 1, for given constants.

    fedgbo theory --smoothness 2 --gradient 3 --beta 0.9 --rounds 5000

    fedgbo theory --lr 0.001 --figure bound.png

    fedgbo theory measure --figure measured.png
    """
    if context.invoked_subcommand is not None:
        _check_nothing_given(context)
        return
    _check_folder(figure)
    if lr is not None and c is not None:
        raise ConfigError("give --lr or --c, not both: C determines the learning rate 2 C / (K √T)")
    problem = Problem(smoothness, gradient, heterogeneity, noise, gap)
    Training(beta, local_steps, rounds, 1.0, lipschitz)  # checks β and T before they go into a formula
    if lr is not None:
        step = step_of(lr, beta, local_steps)
    else:
        step = corollary_step(best_c(problem, beta) if c is None else c, beta, rounds)
    training = Training(beta, local_steps, rounds, step, lipschitz)
    checks = conditions(problem, training)
    if as_json:
        print_json(_bound_json(problem, training, checks))
    else:
        _print_conditions(checks)
    found = theorem(problem, training)  # raises if T is too small for the theorem
    if not as_json:
        _print_bound(problem, training)
        out.print(f"the {found.dominant} term dominates; {_rate(problem, training, fixed=lr is not None)}")
    if figure is not None:
        betas, steps = sorted({*FIGURE_BETAS, beta}), sorted({*FIGURE_STEPS, local_steps})
        rows = bound_rows(problem, betas, steps, 10 * rounds, lr=lr, c=c, lipschitz=lipschitz)
        rule = f"learning rate {lr:g}" if lr is not None else "Corollary 1's learning rate for each T"
        _draw(bound_chart(rows, "Theorem 1's bound", rule), figure)


@app.command("measure")
def measure_command(
    beta: Annotated[list[float] | None, Option(help="A decay β; repeatable. By default 0 and 0.9.")] = None,
    rounds: Annotated[list[int] | None, Option(help=f"A number of rounds T; repeatable. By default {ROUNDS}.")] = None,
    local_steps: Annotated[int, Option(help="The local steps K of a client in a round.")] = 5,
    seeds: Annotated[int, Option(help="The number of runs for each β and T.")] = 2,
    c: COption = None,
    dimension: Annotated[int, Option(help="The dimension of the parameter vector.")] = 10,
    clients: Annotated[int, Option(help="The number of clients, of which at most 5 take part in a round.")] = 20,
    heterogeneity: Annotated[float, Option(help="The spread of the clients' minimisers.")] = 1.0,
    noise: Annotated[float, Option(help="The spread of a client's samples.")] = 1.0,
    condition: Annotated[
        float, Option(help="The ratio of the largest and the smallest eigenvalue of the curvatures.")
    ] = 10.0,
    figure: FigureOption = None,
    wide: opt.Wide = False,
    as_json: opt.Json = False,
) -> None:
    """Run FedGBO with SGDm on quadratics whose constants are known, and compare the measurements with the bound.

    The learning rate is Corollary 1's for each T. Ends with exit code 1 if an assumption or the bound did not hold.
    """
    _check_folder(figure)
    quadratics = Quadratics.draw(dimension, clients, 20, heterogeneity, noise, condition, seed=0)
    problem, results = known_problem(quadratics), []
    for training in plan(problem, beta or (0.0, 0.9), rounds or ROUNDS, local_steps, c):
        if not as_json:
            err.print(f"β = {training.beta:g}, T = {training.rounds}, seeds: {seeds}")
        results.append(measure(quadratics, problem, training, seeds))
    if as_json:
        print_json({"problem": asdict(problem), "results": [_result_json(result) for result in results]})
    else:
        _print_measured(problem, results, wide)
    if figure is not None:
        subtitle = f"quadratics with known constants, K = {local_steps}, seeds: {seeds}"
        chart = bound_chart(measured_rows(results), "FedGBO-SGDm: measured, and Theorem 1", subtitle, points=True)
        _draw(chart, figure)
    if not all(result.holds for result in results):
        sys.exit(1)


def _check_nothing_given(context: typer.Context) -> None:
    """Raise if an option precedes the subcommand, which has its own options and would not see it."""
    for parameter in context.command.params:
        if context.params.get(parameter.name or "") != parameter.default:
            name, command = max(parameter.opts, key=len), context.invoked_subcommand
            raise ConfigError(
                f"{name} before {command} has no effect; write it after {command}, if {command} has this option"
            )


def _check_folder(figure: Path | None) -> None:
    """Raise, before anything is computed, if the picture's folder does not exist."""
    if figure is not None and not figure.parent.is_dir():
        raise ConfigError(f"--figure {figure}: there is no folder {figure.parent}; give a file in a folder that exists")


def _draw(chart: Any, path: Path) -> None:
    for file in save_chart(chart, path):
        err.print(f"picture  {file}")


def _rate(problem: Problem, training: Training, fixed: bool) -> str:
    """Describe how the bound changes as T grows."""
    if fixed:
        return f"as T grows with this learning rate, the bound falls to {floor(problem, training):.4g} and no further"
    later = Training(training.beta, training.local_steps, 4 * training.rounds, training.step / 2, training.lipschitz)
    ratio = theorem(problem, training).total / theorem(problem, later).total
    return f"O(1/√T): 4 times the rounds, with Corollary 1's learning rate for them, divide the bound by {ratio:.3g}"


def _print_conditions(checks: Sequence[Condition]) -> None:
    rows = [
        (c.name, c.of, f"{c.value:.4g}", c.sign, f"{c.limit:.4g}", "yes" if c.holds else "[bold red]no[/]")
        for c in checks
    ]
    columns = ("condition", "for", "value", "", "limit", "holds")
    print_whole(simple_table("conditions", columns, rows, right=("value", "limit")))


def _print_bound(problem: Problem, training: Training) -> None:
    """Print the terms of Theorem 1, with those of Corollary 1 beside them."""
    found, simple = theorem(problem, training), corollary(problem, training)
    title = (
        f"E ‖∇F(x_t)‖² for β = {training.beta:g}, K = {training.local_steps}, T = {training.rounds}, "
        f"learning rate η = {training.lr:.4g}, η̃ = {training.step:.4g}, T̃ = {training.effective_rounds:.6g}"
    )
    rows = []
    for name, formula in FORMULAS.items():
        value = getattr(found, name)
        rows.append((name, formula, f"{value:.4g}", f"{value / found.total:.1%}", f"{getattr(simple, name):.4g}"))
    numbers = ("Theorem 1", "share", "Corollary 1")
    table = simple_table(title, ("term", "formula", *numbers), rows, right=numbers)
    table.add_row("bound", "their sum", f"{found.total:.4g}", "", f"{simple.total:.4g}", style="bold")
    print_whole(table)


def _print_measured(problem: Problem, results: Sequence[Measurement], wide: bool) -> None:
    values = zip(("L", "R", "G", "σ", "F(x_0) - F*"), asdict(problem).values(), strict=True)
    constants = ", ".join(f"{letter} = {value:.4g}" for letter, value in values)
    title = f"known constants: {constants}; K = {results[0].training.local_steps}; seeds: {results[0].seeds}"
    assumed = ("largest gradient\n(R)", "largest ‖e_t‖\n(η̃ √Y)") if wide else ()
    names = ("β", "T", "η", "measured\nE ‖∇F(x_t)‖²", "bound", "bound /\nmeasured", *assumed, "all hold")
    rows = []
    for result in results:
        training, (gradient, _, error, bound_check) = result.training, result.checks
        failed = ", ".join(check.name for check in result.checks if not check.holds)
        settings = [f"{training.beta:g}", str(training.rounds), f"{training.lr:.3g}"]
        ratio = f"{bound_check.limit / result.measured:.3g}x" if result.measured else "-"
        assumptions = [f"{gradient.value:.3g} ({gradient.limit:.3g})", f"{error.value:.2g} ({error.limit:.2g})"]
        holds = f"[bold red]no: {failed}[/]" if failed else "yes"
        shown = assumptions if wide else []
        rows.append([*settings, f"{result.measured:.4g}", f"{bound_check.limit:.4g}", ratio, *shown, holds])
    print_whole(simple_table(title, names, rows, right=names[:-1]), wide)
    if not wide:
        out.print("With --wide: the largest gradient and the largest ‖e_t‖, which the theorem assumes bounded.")


def _bound_json(problem: Problem, training: Training, checks: Sequence[Condition]) -> dict[str, Any]:
    """Return the output of `fedgbo theory --json`; "theorem" is null where the theorem does not apply."""
    terms = ("total", "dominant")
    return {
        "problem": asdict(problem),
        "training": _json(training, "lr") | {"lipschitz": training.b},
        "conditions": _conditions_json(checks),
        "theorem": _json(theorem(problem, training), *terms) if training.long_enough else None,
        "corollary": _json(corollary(problem, training), *terms),
        "floor": floor(problem, training),
    }


def _result_json(result: Measurement) -> dict[str, Any]:
    return {
        "training": _json(result.training, "lr") | {"lipschitz": result.training.b},
        "seeds": result.seeds,
        "measured": result.measured,
        "theorem": _json(result.bound, "total", "dominant"),
        "conditions": _conditions_json(result.checks),
        "holds": result.holds,
    }


def _json(value: Any, *properties: str) -> dict[str, Any]:
    """Return the fields of a dataclass and some of its properties."""
    return asdict(value) | {name: getattr(value, name) for name in properties}


def _conditions_json(checks: Sequence[Condition]) -> list[dict[str, Any]]:
    keys = ("name", "of", "value", "sign", "limit", "holds")
    return [{key: getattr(check, key) for key in keys} for check in checks]
