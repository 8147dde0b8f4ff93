"""`fedgbo experiment`, and what the paper's figures and tables share with it: carry out what is missing."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.markup import escape

from fedgbo.cli.console import clean_errors, err, out, print_whole
from fedgbo.cli.paper import notes, rich_table
from fedgbo.cli.progress import many_runs
from fedgbo.core.checks import whole
from fedgbo.core.errors import DivergenceError, MissingExtraError, RunFolderError
from fedgbo.experiments.experiment import Changes, Experiment, read_experiment
from fedgbo.experiments.jobs import run_jobs
from fedgbo.experiments.results import (
    PlannedRun,
    Results,
    Section,
    clear,
    heading,
    results,
    sections,
    summary_table,
    survey,
    without_accuracy,
)
from fedgbo.experiments.shelf import State
from fedgbo.experiments.summary import Section, sections, summary_table, without_accuracy
from fedgbo.experiments.survey import Place, Results, clear, heading, results, survey
from fedgbo.reports.charts import bands, panel_chart, save_chart
from fedgbo.reports.chart import bands, save_chart
from fedgbo.reports.curves import Curve, curve, curves_csv
from fedgbo.reports.table import FILES, Table
from fedgbo.runs.files import write_atomic
from fedgbo.runs.loop import cores

OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings for all runs, stronger than the file's.")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder of all runs, tables and pictures.")]
JobsOption = Annotated[int | None, typer.Option(help="Runs at the same time. \\[default: the cores]")]
ScaleOption = Annotated[float, typer.Option(help="Shorten everything: 0.1 is a tenth of the rounds and seeds.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="List the runs and what is there; run nothing.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="What to run; docs/experiments.md has the format.")],
    overrides: OverridesArgument = None,
    to: OutOption = Path("runs"),
    jobs: JobsOption = None,
    scale: ScaleOption = 1.0,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run what a file names and what is not there yet, then summarise all of it.

    Stop it at any time, or let it be killed, and repeat the command: what is finished is not run again, what was begun
    goes on. Experiments with the same --out share their runs.
    """
    with clean_errors():
        asked = read_experiment(file, Changes(scale, overrides=tuple(overrides or ())))
        found = carry_out(asked, to, jobs, dry_run=dry_run, quiet=quiet)
        if found is None:
            return
        made = sections(found)
        if any(section.groups for section in made):
            table = summary_table(made, asked.name, heading(asked, found))
            show_table(table)
            files = save_table(table, to / asked.file_name)
            show_files([*files, *save_picture(_curves(made), asked, found, to, "test accuracy (%)", 100)])
        if left := without_accuracy(found):
            command = f"fedgbo report {shlex.quote(str(to / 'runs'))} -o report.html"
            out.print(
                escape(f"{len(left)} runs have no accuracy, for their task has no metric; see their loss: {command}")
            )
        end(asked, found)


def carry_out(
    experiment: Experiment, to: Path, jobs: int | None, *, dry_run: bool = False, quiet: bool = False
) -> Results | None:
    """Run what is missing, and return what all runs came to; None if nothing was to be run at all."""
    workers = cores() if jobs is None else jobs
    whole("jobs", workers)
    places = survey(experiment, to)
    if dry_run:
        _list(experiment, places)
        return None
    try:
        (to / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {to}: {error.strerror}; choose another place") from error
    places, said = clear(places)
    for line in said:
        err.print(f"[bold red]warning:[/] {escape(line)}")
    todo = [place.job() for place in places if not place.ended]
    for config in {str(job.config.task): job.config for job in todo}.values():
        config.build_task()  # what is wrong with the data is said before the first run, not in the middle
    if not quiet:
        err.print(*map(escape, [*experiment.notes, f"{experiment.name}: {_tally(places)}"]), sep="\n")
    try:
        with many_runs(todo, quiet) as tell:
            failed = run_jobs(todo, workers, tell) if todo else {}
    except KeyboardInterrupt:
        err.print("stopped; go on by the same command")
        sys.exit(130)
    return results(experiment, to, {todo[number].out: why for number, why in failed.items()}, said)


def end(experiment: Experiment, found: Results) -> None:
    """Say what was set aside, diverged or failed, and end with the exit code for it."""
    for line in found.set_aside:
        out.print(escape(line))
    for place in found.diverged:
        out.print(escape(f"diverged: {place.path.name}: {place.find.reason}"))
    for place, reason in found.failed:
        err.print(f"[bold red]failed:[/] {escape(f'{place.path.name}: {reason}')}")
    if found.failed:
        sys.exit(1)
    if found.diverged and not experiment.allow_divergence:
        err.print("runs diverged; write allow_divergence = true into the file if that is to be expected")
        sys.exit(DivergenceError.exit_code)


def show_table(table: Table) -> None:
    """Print a table and what stands below it."""
    print_whole(rich_table(table))
    for line in notes(table):
        out.print(line)


def show_files(files: Sequence[Path]) -> None:
    """Say what was written."""
    for file in files:
        out.print(f"wrote {escape(str(file))}")


def save_table(table: Table, path: Path) -> list[Path]:
    """Write a table as Markdown, CSV, LaTeX and JSON beside each other; return the files."""
    files = []
    for kind, render in FILES.items():
        files.append(path.with_name(f"{path.name}.{kind}"))
        write_atomic(files[-1], render(table).encode())
    return files


def save_picture(
    curves: Sequence[Curve],
    experiment: Experiment,
    found: Results,
    to: Path,
    value: str,
    factor: float = 1.0,
    names: tuple[str, str, str, str] = ("runs", "column", "algorithm", "accuracy"),
) -> list[Path]:
    """Write curves as a picture and as numbers; return the files. Without altair there are the numbers."""
    path = to / experiment.file_name
    numbers = path.with_name(f"{path.name}-curves.csv")
    write_atomic(numbers, curves_csv(curves, heading(experiment, found), names).encode())
    said = [*experiment.words, *found.lacking, bands(max(line.seeds for line in curves))]
    try:
        chart = panel_chart(curves, experiment.title, said, value, factor)
        return [numbers, *save_chart(chart, path, ("png", "svg", "pdf"))]
    except MissingExtraError as error:
        err.print(escape(str(error)))
        return [numbers]


def _curves(made: Sequence[Section]) -> list[Curve]:
    return [
        curve(group.runs, lambda record: record.accuracy, row=section.title, column="", series=group.label)
        for section in made
        for group in section.groups
    ]


def _list(experiment: Experiment, places: Sequence[PlannedRun]) -> None:
    for place in places:
        why = f" ({place.find.reason})" if place.find.state == "damaged" else ""
        out.print(escape(f"{place.find.state:<9} {place.path.name}{why}"))
    out.print(f"{escape(experiment.heading)}: {_tally(places)}")


def _tally(places: Sequence[PlannedRun]) -> str:
    counted = Counter(place.find.state for place in places)
    there = ", ".join(f"{counted[state]} {state}" for state in get_args(State) if counted[state])
    return f"{len(places)} runs: {there}"
