"""What `fedgbo theory` shows: tables for people, JSON for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from fedgbo.experiments.theory.bound import Bound, Condition, Problem, Training, corollary, floor, theorem
from fedgbo.experiments.theory.measure import Measurement

FORMULAS = {
    "start": "2 (1-β) (F(x_0)-F*) / (η̃ T̃)",
    "drift": "T η̃² Y / T̃",
    "momentum": "2 T η̃ L (1+β) (R² + η̃² Y) / (T̃ (1-β)²)",
}


def rate(problem: Problem, training: Training, fixed: bool) -> str:
    """Say how the bound goes on as T grows."""
    if fixed:
        return f"as T grows with this learning rate, the bound falls to {floor(problem, training):.4g} and no further"
    later = Training(training.beta, training.local_steps, 4 * training.rounds, training.step / 2, training.lipschitz)
    ratio = theorem(problem, training).total / theorem(problem, later).total
    return f"O(1/√T): 4 times the rounds, with Corollary 1's learning rate for them, divide the bound by {ratio:.3g}"


def conditions_table(checks: Sequence[Condition]) -> Table:
    """Return every condition with its value and whether it holds."""
    table = Table(title="conditions", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("condition", "for", "value", "", "limit", "holds"):
        table.add_column(name, justify="right" if name in ("value", "limit") else "left")
    for check in checks:
        holds = "yes" if check.holds else "[bold red]no[/]"
        table.add_row(check.name, check.of, f"{check.value:.4g}", check.sign, f"{check.limit:.4g}", holds)
    return table


def bound_table(problem: Problem, training: Training, found: Bound) -> Table:
    """Return the terms of Theorem 1, and of Corollary 1 beside them."""
    simple = corollary(problem, training)
    title = (
        f"E ‖∇F(x_t)‖² for β = {training.beta:g}, K = {training.local_steps}, T = {training.rounds}, "
        f"learning rate η = {training.lr:.4g}, η̃ = {training.step:.4g}, T̃ = {training.effective_rounds:.6g}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("term")
    table.add_column("formula")
    for name in ("Theorem 1", "share", "Corollary 1"):
        table.add_column(name, justify="right")
    for name, formula in FORMULAS.items():
        value = getattr(found, name)
        table.add_row(name, formula, f"{value:.4g}", f"{value / found.total:.1%}", f"{getattr(simple, name):.4g}")
    table.add_row("bound", "their sum", f"{found.total:.4g}", "", f"{simple.total:.4g}", style="bold")
    return table


def measured_table(problem: Problem, results: Sequence[Measurement]) -> Table:
    """Return what was measured beside what the theorem says."""
    values = zip(("L", "R", "G", "σ", "F(x_0) - F*"), asdict(problem).values(), strict=True)
    constants = ", ".join(f"{letter} = {value:.4g}" for letter, value in values)
    title = f"known constants: {constants}; K = {results[0].training.local_steps}; seeds: {results[0].seeds}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("β", "T", "η", "measured\nE ‖∇F(x_t)‖²", "bound", "bound by\nmeasured", "largest gradient\n(R)",
                 "largest ‖e_t‖\n(η̃ √Y)", "all hold"):  # fmt: skip
        table.add_column(name, justify="right")
    for result in results:
        training, (gradient, _, error, bound_check) = result.training, result.checks
        failed = ", ".join(check.name for check in result.checks if not check.holds)
        table.add_row(
            f"{training.beta:g}",
            str(training.rounds),
            f"{training.lr:.3g}",
            f"{result.measured:.4g}",
            f"{bound_check.limit:.4g}",
            f"{bound_check.limit / result.measured:.3g}x" if result.measured else "-",
            f"{gradient.value:.3g} ({gradient.limit:.3g})",
            f"{error.value:.2g} ({error.limit:.2g})",
            f"[bold red]no: {failed}[/]" if failed else "yes",
        )
    return table


def bound_json(problem: Problem, training: Training, checks: Sequence[Condition]) -> dict[str, Any]:
    """Return all of `fedgbo theory` for machines; the theorem is null where it says nothing."""
    return {
        "problem": asdict(problem),
        "training": _training_json(training),
        "conditions": [_condition_json(check) for check in checks],
        "theorem": _terms_json(theorem(problem, training)) if training.long_enough else None,
        "corollary": _terms_json(corollary(problem, training)),
        "floor": floor(problem, training),
    }


def measured_json(problem: Problem, results: Sequence[Measurement]) -> dict[str, Any]:
    """Return all of `fedgbo theory measure` for machines."""
    return {"problem": asdict(problem), "results": [_result_json(result) for result in results]}


def _result_json(result: Measurement) -> dict[str, Any]:
    return {
        "training": _training_json(result.training),
        "seeds": result.seeds,
        "measured": result.measured,
        "theorem": _terms_json(result.bound),
        "conditions": [_condition_json(check) for check in result.checks],
        "holds": result.holds,
    }


def _training_json(training: Training) -> dict[str, Any]:
    return asdict(training) | {"lr": training.lr, "lipschitz": training.b}


def _terms_json(terms: Bound) -> dict[str, Any]:
    return asdict(terms) | {"total": terms.total, "dominant": terms.dominant}


def _condition_json(check: Condition) -> dict[str, Any]:
    content = {"name": check.name, "of": check.of, "value": check.value, "sign": check.sign, "limit": check.limit}
    return content | {"holds": check.holds}
