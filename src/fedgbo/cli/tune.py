"""`fedgbo tune`."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedgbo.cli.console import clean_errors, err
from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, MissingExtraError, unknown
from fedgbo.experiments.tune.plan import FIRST_SEED, Plan, claim_folder, plan_of
from fedgbo.runs.loop import cores

SEARCH, SCORE = "Search", "Score"


def tune(
    ranges: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUES",
            help="Where to search: lr=0.01:1 (a range), lr=0.1,1,10 (a grid) or lr=0.1 (fixed). "
            "\\[default: the paper's grids for every hyperparameter that has no default]",
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="A task's name, or my_file.py:function.")] = "digits",
    algorithm: Annotated[str, typer.Option(help="An algorithm's name, or my_file.py:Class.")] = "fedgbo",
    optimiser: Annotated[str | None, typer.Option(help="An optimiser's name, or my_file.py:Class.")] = None,
    search: Annotated[str, typer.Option(help="tpe or grid.", rich_help_panel=SEARCH)] = "tpe",
    trials: Annotated[
        int | None, typer.Option(help="Settings to try. \\[default: 30; a grid: all]", rich_help_panel=SEARCH)
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Rounds that all trials together may take.", rich_help_panel=SEARCH)
    ] = None,
    prune: Annotated[
        int, typer.Option(help="Successive halving keeps one trial in so many; 0: never.", rich_help_panel=SEARCH)
    ] = 3,
    score: Annotated[
        str, typer.Option(help="curve (mean over all rounds), best or last accuracy.", rich_help_panel=SCORE)
    ] = "curve",
    warm_up: Annotated[int, typer.Option(help="First rounds that do not count.", rich_help_panel=SCORE)] = 0,
    seeds: Annotated[
        int, typer.Option(help=f"Seeds {FIRST_SEED}, {FIRST_SEED + 1}, ... a setting.", rich_help_panel=SCORE)
    ] = 2,
    on: Annotated[
        str, typer.Option(help="held-out: clients' held-out data; test: the test set.", rich_help_panel=SCORE)
    ] = "held-out",
    held_out: Annotated[
        float, typer.Option(help="Share of each client's training samples.", rich_help_panel=SCORE)
    ] = 0.2,
    test_samples: Annotated[
        int | None, typer.Option(help="Evaluate on a fixed random sample of these.", rich_help_panel=SCORE)
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Rounds between evaluations. \\[default: so that there are 20]", rich_help_panel=SCORE),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Communication rounds of a run.")] = 100,
    local_steps: Annotated[int, typer.Option(help="K, local steps of a client.")] = 10,
    clients_per_round: Annotated[str | None, typer.Option(help="M, or all. \\[default: the task's]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="B, or full. \\[default: the task's]")] = None,
    jobs: Annotated[int | None, typer.Option(help="Trials at the same time. \\[default: the cores]")] = None,
    storage: Annotated[
        str | None, typer.Option(help="An Optuna URL that several machines share. \\[default: a file in --out]")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="The study's name in the storage. \\[default: from the task]")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the search. \\[default: runs/tune-<name>-<time>]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Search good settings for an algorithm on a task, without looking at the test set.

    Stop it at any time, or kill it, and repeat the command with the same --out to go on. Run the same command twice, or
    on several machines with the same --storage, to share the work:

    fedgbo tune --task digits --algorithm fedgbo --optimiser sgdm lr=0.01:10 --budget 8000 --out runs/tuned

    fedgbo run --preset runs/tuned/preset.csv
    """
    with clean_errors():
        if on not in ("held-out", "test"):
            raise ConfigError(unknown("data to tune on", on, ("held-out", "test")))
        asked: dict[str, Any] = {
            "search": search, "trials": trials, "budget": budget, "prune": prune, "score": score, "warm_up": warm_up,
            "seeds": seeds, "held_out": held_out if on == "held-out" else None, "test_samples": test_samples,
            "eval_every": eval_every, "rounds": rounds, "local_steps": local_steps,
            "clients_per_round": clients_per_round, "batch_size": batch_size,
        }  # fmt: skip
        plan = plan_of(task, algorithm, optimiser, ranges or [], asked)
        workers = cores() if jobs is None else jobs
        whole("jobs", workers)
        label = f"{task.rpartition(':')[2]}-{plan.config({a.name: a.low for a in plan.axes}, 0).label}"
        folder = to or Path("runs") / f"tune-{label}-{time.strftime('%Y%m%d-%H%M%S')}"
        if on == "test":
            err.print("[bold yellow]warning:[/] the test set chooses the settings, so it no longer tests them")
        _carry_out(plan, folder, storage, study or f"{label}-K{local_steps}", workers, as_json, quiet or as_json)


def _carry_out(
    plan: Plan, folder: Path, storage: str | None, name: str, workers: int, as_json: bool, quiet: bool
) -> None:
    try:
        from fedgbo.cli.trials import Show, report
        from fedgbo.experiments.tune.study import local_url
        from fedgbo.experiments.tune.worker import search
    except ImportError as error:
        raise MissingExtraError(f"fedgbo tune needs optuna: pip install 'fedgbo[tune]' ({error})") from error
    claim_folder(folder, plan, name)
    began = time.monotonic()
    try:
        with Show(plan, folder, workers, quiet) as show:
            done = search(plan, folder, storage or local_url(folder), name, workers, show)
    except KeyboardInterrupt:
        err.print(escape(f"stopped; go on by the same command with --out {folder}"))
        sys.exit(130)
    report(done, plan, folder, as_json, time.monotonic() - began)
