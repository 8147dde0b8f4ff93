"""`fedgbo tune`: the search, a line for each trial that ends, and a summary.

optuna is an optional dependency: the modules that need it are imported inside functions.
"""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.status import Status
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json, save_chart_if_possible, stopped_by_ctrl_c
from fedgbo.core import ConfigError, MissingExtraError, unknown
from fedgbo.core.files import write_atomic
from fedgbo.experiments.tune.plan import FIRST_SEED, Plan, claim_search, plan_of
from fedgbo.reports.sensitivity import Scale, Tried, sensitivity_chart
from fedgbo.reports.table import quantity

if TYPE_CHECKING:
    import optuna

    from fedgbo.experiments.tune.study import Outcome

LOOK_SECONDS = 2.0  # between two looks at the study
Search, Score = (partial(Option, rich_help_panel=panel) for panel in ("Search", "Score"))


def tune(
    ranges: Annotated[
        list[str] | None,
        Argument(
            metavar="KEY=VALUES",
            help="Where to search: lr=0.01:1 (a range), lr=0.1,1,10 (a grid) or lr=0.1 (fixed). "
            "\\[default: the paper's grids for every hyperparameter that has no default]",
        ),
    ] = None,
    task: Annotated[str, opt.TaskName()] = "digits",
    algorithm: Annotated[str, opt.AlgorithmName(help="The name of an algorithm, or my_file.py:Class.")] = "fedgbo",
    optimiser: opt.Optimiser = None,
    search: Annotated[str, Search(help="How to search: tpe or grid.")] = "tpe",
    trials: Annotated[int | None, Search(help="The number of settings to try. \\[default: 30; a grid: all]")] = None,
    budget: Annotated[int | None, Search(help="The maximum total number of rounds of all trials.")] = None,
    prune: Annotated[int, Search(help="Successive halving keeps one trial in this many; 0 keeps all.")] = 3,
    score: Annotated[str, Score(help="Score by curve (the mean over all rounds), best or last accuracy.")] = "curve",
    warm_up: Annotated[int, Score(help="The number of initial rounds to leave out of the score.")] = 0,
    seeds: Annotated[int, Score(help=f"The number of seeds for each setting: {FIRST_SEED}, {FIRST_SEED + 1}, ...")] = 2,
    on: Annotated[
        str, Score(help="Score on held-out (a part of the clients' data) or on test (the test set).")
    ] = "held-out",
    held_out: Annotated[float, Score(help="Hold out this share of each client's training samples.")] = 0.2,
    test_samples: Annotated[
        int | None, Score(help="The size of a fixed random sample of this data to evaluate on.")
    ] = None,
    eval_every: Annotated[
        int | None, Score(help="The number of rounds between evaluations. \\[default: 20 evaluations per run]")
    ] = None,
    rounds: Annotated[int, Option(help="The communication rounds of a run.")] = 100,
    local_steps: Annotated[int, Option(help="The local steps of a client in a round (K).")] = 10,
    clients_per_round: opt.ClientsPerRound = None,
    batch_size: opt.BatchSize = None,
    jobs: Annotated[
        int | None, Option(help="The number of trials at the same time. \\[default: the number of cores]")
    ] = None,
    storage: Annotated[
        str | None, Option(help="The URL of an Optuna storage, for several machines. \\[default: a file in --out]")
    ] = None,
    study: Annotated[
        str | None, Option(help="The name of the study in the storage. \\[default: from the task]")
    ] = None,
    to: Annotated[Path | None, opt.Out(help="The folder of the search. \\[default: runs/tune-<name>-<time>]")] = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Search for good settings of an algorithm on a task, without using the test set.

    You can stop or kill the command at any time; repeat it with the same --out to resume.

    To share the work, run the same command twice, or on several machines with the same --storage.

    fedgbo tune --task digits --algorithm fedgbo --optimiser sgdm lr=0.01:10 --budget 8000 --out runs/tuned

    fedgbo run --preset runs/tuned/preset.csv
    """
    if on not in ("held-out", "test"):
        raise ConfigError(unknown("data to tune on", on, ("held-out", "test")))
    asked: dict[str, Any] = {
        "search": search, "trials": trials, "budget": budget, "prune": prune, "score": score, "warm_up": warm_up,
        "seeds": seeds, "held_out": held_out if on == "held-out" else None, "test_samples": test_samples,
        "eval_every": eval_every, "rounds": rounds, "local_steps": local_steps,
        "clients_per_round": clients_per_round, "batch_size": batch_size,
    }  # fmt: skip
    plan = plan_of(task, algorithm, optimiser, ranges or [], asked)
    workers = opt.worker_count(jobs)
    label = f"{task.rpartition(':')[2]}-{plan.config({axis.name: axis.low for axis in plan.axes}, 0).label}"
    folder = to or opt.new_folder("tune", label, claim=not dry_run)
    if dry_run:
        _show_plan(plan, workers, folder)
        return
    if on == "test":
        err.print(
            "[bold yellow]warning:[/] settings are chosen on the test set, so it is no longer an independent test"
        )
    began = time.monotonic()
    done = _search(plan, folder, storage, study or f"{label}-K{local_steps}", workers, quiet or as_json)
    _report(done, plan, folder, as_json, time.monotonic() - began)


def _search(plan: Plan, folder: Path, storage: str | None, name: str, workers: int, quiet: bool) -> "optuna.Study":
    try:
        from fedgbo.experiments.tune.study import local_url
        from fedgbo.experiments.tune.worker import search
    except ImportError as error:
        raise MissingExtraError(f"fedgbo tune needs optuna: pip install 'fedgbo[tune]' ({error})") from error
    claim_search(folder, plan, name)
    if not quiet:
        err.print(escape(_work(plan, workers, folder)))
    hint = f"repeat the command with --out {folder} to resume"
    status = Status("", console=err)
    with stopped_by_ctrl_c(hint), status if err.is_terminal and not quiet else nullcontext():
        show = _progress(plan, status, quiet)
        study = search(plan, folder, storage or local_url(folder), name, workers, show)
        show(study, last=True)
    return study


def _title(plan: Plan) -> str:
    return f"{plan.task['name']}: {plan.algorithm} {plan.optimiser or ''}".rstrip()


def _work(plan: Plan, workers: int, folder: Path) -> str:
    many = f"{plan.trials} trials" if plan.budget is None else f"trials of {plan.budget} rounds in all"
    return f"{plan.search}: {many}, {plan.trial_rounds} rounds each, {workers} at a time, into {folder}"


def _show_plan(plan: Plan, workers: int, folder: Path) -> None:
    """Print what would be searched."""
    out.print(escape(f"would search {_title(plan)}"))
    for axis in plan.axes:
        where = (
            ", ".join(f"{value:g}" for value in axis.values)
            if plan.search == "grid"
            else f"{axis.low:g} to {axis.high:g}"
        )
        out.print(escape(f"  {axis.name:<12} {where}"))
    for name, value in plan.fixed.items():
        out.print(escape(f"  {name:<12} {value}"))
    out.print(escape(f"{_work(plan, workers, folder)}; nothing was run"))


def _progress(plan: Plan, status: Status, quiet: bool) -> "Callable[..., None]":
    """Return a function that shows the trials that have ended since its last call, in any process.

    It looks from time to time and, with `last`, in any case.
    """
    from fedgbo.experiments.tune.study import outcome_of

    known: set[int] = set()
    looked = float("-inf")  # time of the last look

    def show(study: "optuna.Study", last: bool = False) -> None:
        nonlocal known, looked
        if quiet or (time.monotonic() - looked < LOOK_SECONDS and not last):
            return
        looked = time.monotonic()
        now = outcome_of(study, plan)
        for tried in now.tried:
            if tried.index not in known:
                err.print(f"trial {tried.index}: {_line(tried)}")
        known = {tried.index for tried in now.tried}
        best = f"; best so far: {_line(now.best)}" if now.count("finished") else ""
        status.update(f"{len(now.tried)} trials, {now.cost.rounds} rounds{best}")

    return show


def _report(study: "optuna.Study", plan: Plan, folder: Path, as_json: bool, seconds: float) -> None:
    """Write the files and print the result."""
    from fedgbo.experiments.tune.study import edges, outcome_of, trials_csv, winner

    found = outcome_of(study, plan)
    best, measured = found.best, _measured(study, plan)
    summary = _summary(found, plan, folder, measured)
    write_atomic(folder / "preset.csv", winner(plan, best).encode())
    write_atomic(folder / "trials.csv", trials_csv(plan, found.tried).encode())
    write_atomic(folder / "result.json", (json.dumps(summary, indent=2) + "\n").encode())
    grid = plan.search == "grid"
    scales = [Scale(axis.name, axis.values if grid else None, axis.decay, axis.logarithmic) for axis in plan.axes]
    draw = partial(sensitivity_chart, found.tried, scales, _title(plan), measured, plan.seeds)
    files = save_chart_if_possible(draw, folder / "sensitivity")
    if as_json:
        print_json(summary)
        return
    out.print(f"best: {_line(best)}")
    for warning in edges(plan, best):
        err.print(f"[bold yellow]note:[/] {warning}")
    out.print(_spent(found, seconds))
    out.print(escape(f"preset   {folder / 'preset.csv'}\ntrials   {folder / 'trials.csv'}"))
    for file in files:
        out.print(escape(f"picture  {file}"))
    optimiser = f" --optimiser {plan.optimiser}" if plan.optimiser else ""
    steps = "" if plan.local_steps == 10 else f" --local-steps {plan.local_steps}"
    task = f"--task {plan.task['name']} --algorithm {plan.algorithm}{optimiser}{steps}"
    out.print(escape(f"use it: fedgbo run --preset {folder / 'preset.csv'} {task}"))


def _summary(found: "Outcome", plan: Plan, folder: Path, measured: str) -> dict[str, Any]:
    """Return the content of result.json, which --json prints."""
    return {
        "out": str(folder),
        "settings": {**plan.fixed, **found.best.settings},
        "score": found.best.score,
        "measured": measured,
        "trials": len(found.tried),
        "stopped_early": found.count("stopped early"),
        "diverged": found.count("diverged"),
        "taken_up": found.taken_up,
        "lost_rounds": found.lost_rounds,
        **asdict(found.cost),
    }


def _line(tried: Tried) -> str:
    settings = ", ".join(f"{key}={value:g}" for key, value in tried.settings.items())
    score = "" if tried.score is None else f": score {tried.score:.4f}"
    how = "" if tried.state == "finished" else f", {tried.state} at round {tried.cost['rounds']}"
    return f"{settings}{score}{how}"


def _spent(found: "Outcome", seconds: float) -> str:
    cost, many = found.cost, len(found.tried)
    again = f"; {found.taken_up} resumed after a kill, {found.lost_rounds} rounds lost" if found.taken_up else ""
    return (
        f"cost: {many} {'trial' if many == 1 else 'trials'} ({found.count('stopped early')} stopped early, "
        f"{found.count('diverged')} diverged{again}), {cost.rounds} rounds, {cost.client_steps} client steps, "
        f"{quantity(cost.upload_bytes, 'B', 1024)} up, {quantity(cost.flops, 'FLOP')} on clients, "
        f"{cost.seconds:.0f} s of training; {seconds:.0f} s in this command"
    )


def _measured(study: "optuna.Study", plan: Plan) -> str:
    """Return a description of the score, e.g. "mean held-out accuracy"."""
    kind = {"curve": "mean", "best": "best", "last": "last"}[plan.score]
    where = "test" if plan.held_out is None else "held-out"
    what = "accuracy" if study.user_attrs["metric"] else "loss, negative"
    return f"{kind} {where} {what}" + (f" after round {plan.warm_up}" if plan.warm_up else "")
