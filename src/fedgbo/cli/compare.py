"""`fedgbo compare`."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import (
    err,
    many_runs,
    out,
    save_chart_if_possible,
    say,
    show_plan,
    show_table,
    stopped_by_ctrl_c,
    writing,
)
from fedgbo.core import ConfigError, FedGBOError, RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.experiments.compare import claim, jobs_of, plan
from fedgbo.experiments.jobs import code_of, run_jobs
from fedgbo.experiments.results import ResultSection, summary_table
from fedgbo.experiments.shelf import group_key, labels_of, look
from fedgbo.reports.comparison import conclusion
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import Group, RunData, group_runs, load_run


def compare(
    algorithms: Annotated[
        list[str] | None,
        Argument(
            metavar="[ALGORITHM]...",
            autocompletion=opt.entries,
            help="Names such as fedavg, fedgbo:adam (with an optimiser) or my_file.py:Class; paper (the paper's eight) "
            "or all. KEY=VALUE after a name applies to this algorithm only, before the first name to all. "
            "\\[default: paper]",
        ),
    ] = None,
    task: Annotated[str, opt.TaskName()] = "digits",
    optimiser: Annotated[
        str | None,
        Option(
            autocompletion=opt.named("optimiser"), help="The optimiser of algorithms that take one. \\[default: sgdm]"
        ),
    ] = None,
    seeds: Annotated[int, opt.Whole(help="The number of seeds for each algorithm: 0, 1, ...")] = 3,
    rounds: opt.Rounds = None,
    local_steps: opt.LocalSteps = None,
    eval_every: opt.EvalEvery = None,
    preset: opt.Preset = None,
    test_samples: opt.TestSamples = None,
    lr: Annotated[float | None, Option(help="The clients' learning rate, the same for all algorithms.")] = None,
    jobs: opt.Jobs = None,
    to: Annotated[
        Path | None, opt.Out(help="The folder of the comparison. \\[default: runs/compare-<task>-<time>]")
    ] = None,
    dry_run: opt.DryRun = False,
    wide: opt.Wide = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run several algorithms on the same seeds and compare them as the paper's Table 4 does.

    fedgbo compare all

    fedgbo compare fedavg fedgbo:sgdm fedgbo:adam --task digits --seeds 5

    fedgbo compare fedavg lr=0.1 fedgbo:sgdm lr=0.1 beta=0.9

    You can stop the command at any time and repeat it with the same --out: finished runs are not repeated.
    """
    shared = {
        "task": task, "optimiser": optimiser, "rounds": rounds, "local_steps": local_steps,
        "eval_every": eval_every, "preset": preset, "test_samples": test_samples, "lr": lr,
    }  # fmt: skip
    began, quiet = time.monotonic(), quiet or as_json
    configs, notes = plan(algorithms or ["paper"], seeds, shared)
    built = configs[0].build_task()
    if built.metric is None or (built.data.test is None and built.data.client_tests is None):
        raise ConfigError(f"task {built.name} has no metric on a test set to compare by; give it metric= and test=")
    workers = opt.worker_count(jobs)
    folder = to or opt.new_folder("compare", task, claim=not dry_run)
    todo = jobs_of(configs, folder)
    if dry_run:
        done = [job.title for job in todo if look(job.out, job.config).state == "finished"]
        where = f"{built.name}, {configs[0].rounds} rounds each, into {folder}"
        show_plan([job.title for job in todo if job.title not in done], notes, where, done)
        return
    claim(folder, configs)
    if not quiet:
        err.print(*notes, f"{len(todo)} runs, {workers} at a time, into {folder}", sep="\n")
    with stopped_by_ctrl_c(f"repeat the command with --out {folder} to resume"), many_runs(todo, quiet) as tell:
        failed = run_jobs(todo, workers, tell)
    loaded = [load_run(job.out) for number, job in enumerate(todo) if number not in failed]
    if not loaded:
        error = FedGBOError(f"no run finished: {failed[0].how}")
        error.exit_code = code_of(failed.values())
        raise error
    for number, ending in failed.items():
        err.print(f"[bold red]left out:[/] {escape(f'{todo[number].out.name}: {ending.how}')}")
    try:
        _report(labelled(loaded), folder, task, as_json, wide, began)
    except RunFolderError:
        say(escape(f"the finished runs are kept; when there is room, repeat the command with --out {folder}"))
        raise
    if failed:
        say(escape(f"the finished runs are kept; to resume the others, repeat the command with --out {folder}"))
        sys.exit(code_of(failed.values()))


def labelled(runs: Sequence[RunData]) -> list[Group]:
    """Group runs by algorithm and settings, each group with a label of its own."""
    labels = labels_of([run.config for run in runs])
    return [replace(group, label=labels[group_key(group.runs[0].config)]) for group in group_runs(runs)]


def _report(groups: Sequence[Group], folder: Path, task: str, as_json: bool, wide: bool, began: float) -> None:
    section = ResultSection(task, tuple(groups))
    content = json.dumps([asdict(row) for row in section.summaries], indent=2)
    if as_json:
        out.print_json(content)
    else:
        show_table(summary_table([section], "compare", f"Best {groups[0].metric} and its cost"), wide)
        for line in conclusion(section.summaries):
            out.print(line)
    with writing(folder / "table.json"):
        write_atomic(folder / "table.json", (content + "\n").encode())
    files = save_chart_if_possible(lambda: accuracy_chart(groups, task), folder / "accuracy")
    if as_json:
        return
    out.print(f"\n{time.monotonic() - began:.0f} s in all\ntable    {folder / 'table.json'}", markup=False)
    for file in files:
        out.print(f"picture  {file}")
    out.print(f"runs     {folder / 'runs'}")
