"""`fedgbo compare`."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedgbo.cli.console import clean_errors, err, out
from fedgbo.cli.experiment import show_table
from fedgbo.cli.progress import many_runs
from fedgbo.core.checks import whole
from fedgbo.core.errors import MissingExtraError, RunFolderError
from fedgbo.experiments.compare import claim, jobs_of, plan
from fedgbo.experiments.jobs import run_jobs
from fedgbo.experiments.summary import Section, summary_table
from fedgbo.reports.charts import accuracy_chart, save_chart
from fedgbo.reports.comparison import conclusion, summarise
from fedgbo.experiments.results import Section, summary_table
from fedgbo.reports.chart import save_chart
from fedgbo.reports.conclusion import conclusion
from fedgbo.reports.drawing import accuracy_chart
from fedgbo.reports.load import Group, group_runs, load_run
from fedgbo.runs.files import write_atomic
from fedgbo.runs.loop import cores


def compare(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(help="Names, name:optimiser (fedgbo:adam), my_file.py:Class, or all. \\[default: all]"),
    ] = None,
    task: Annotated[str, typer.Option(help="A task's name, or my_file.py:function.")] = "digits",
    optimiser: Annotated[str | None, typer.Option(help="For the algorithms that take one. \\[default: sgdm]")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ... for each algorithm.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. \\[default: 100]")] = None,
    local_steps: Annotated[int | None, typer.Option(help="K, local steps of a client. \\[default: 10]")] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations. \\[default: so that there are 100]")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Tuned settings to start from: a name, a .csv of fedgbo tune, or none.")
    ] = None,
    test_samples: Annotated[int | None, typer.Option(help="Evaluate on a fixed random sample of the test set.")] = None,
    lr: Annotated[float | None, typer.Option(help="The same clients' learning rate for all.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time. \\[default: the cores]")] = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the comparison. \\[default: runs/compare-<task>-<time>]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run several algorithms on the same seeds and compare them as the paper's Table 4 does.

    Stop it at any time and repeat the command with the same --out: what is finished is not run again.
    """
    with clean_errors():
        shared = {
            "task": task, "optimiser": optimiser, "rounds": rounds, "local_steps": local_steps,
            "eval_every": eval_every, "preset": preset, "test_samples": test_samples, "lr": lr,
        }  # fmt: skip
        began, quiet = time.monotonic(), quiet or as_json
        configs, notes = plan(algorithms or ["all"], seeds, shared)
        configs[0].build_task()
        workers = cores() if jobs is None else jobs
        whole("jobs", workers)
        folder = to or Path("runs") / f"compare-{task.rpartition(':')[2]}-{time.strftime('%Y%m%d-%H%M%S')}"
        todo = jobs_of(configs, folder)
        claim(folder, configs)
        if not quiet:
            err.print(*notes, f"{len(todo)} runs, {workers} at a time, into {folder}", sep="\n")
        try:
            with many_runs(todo, quiet) as tell:
                failed = run_jobs(todo, workers, tell)
        except KeyboardInterrupt:
            err.print(f"stopped; go on by the same command with --out {folder}")
            sys.exit(130)
        loaded = [load_run(job.out) for number, job in enumerate(todo) if number not in failed]
        if not loaded:
            raise RunFolderError(f"no run finished: {next(iter(failed.values()))}")
        _report(group_runs(loaded), folder, task, as_json, time.monotonic() - began)
        for number, reason in failed.items():
            err.print(f"[bold red]left out:[/] {escape(f'{todo[number].out.name}: {reason}')}")
        if failed:
            sys.exit(1)


def _report(groups: Sequence[Group], folder: Path, task: str, as_json: bool, seconds: float) -> None:
    rows = summarise(groups)
    content = json.dumps([asdict(row) for row in rows], indent=2)
    write_atomic(folder / "table.json", (content + "\n").encode())
    try:
        files = save_chart(accuracy_chart(groups, f"{task}: test accuracy"), folder / "accuracy")
    except MissingExtraError as error:
        files = []
        err.print(escape(str(error)))
    if as_json:
        out.print_json(content)
        return
    show_table(summary_table([Section(task, tuple(groups))], "compare", "Best accuracy, and what it took"))
    for line in conclusion(rows):
        out.print(line)
    out.print(f"\n{seconds:.0f} s in all\ntable    {folder / 'table.json'}")
    for file in files:
        out.print(f"picture  {file}")
    out.print(f"runs     {folder / 'runs'}")
