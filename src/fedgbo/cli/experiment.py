"""`fedgbo experiment`, `fedgbo study`, and `fedgbo paper`: the paper's tables and figures beside the printed values."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, get_args

import typer
from rich.markup import escape
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import (
    err,
    many_runs,
    out,
    save_chart_if_possible,
    say,
    show_table,
    stopped_by_ctrl_c,
    with_seeds,
)
from fedgbo.core import DataError, DivergenceError, RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.experiments.experiment import Changes, Experiment, read_experiment
from fedgbo.experiments.jobs import Ending, Job, code_of, run_jobs
from fedgbo.experiments.paper import TABLES
from fedgbo.experiments.paper.from_runs import FIGURES, Figure, paper_experiment, table4, table5
from fedgbo.experiments.results import (
    PlannedRun,
    Results,
    ResultSection,
    clear,
    heading,
    results,
    sections,
    summary_table,
    survey,
    without_accuracy,
)
from fedgbo.experiments.shelf import State
from fedgbo.experiments.study import (
    carry_out,
    diverged_contenders,
    diverged_runs,
    final_groups,
    kept_runs,
    read_study,
    search_table,
)
from fedgbo.reports.charts import panel_chart
from fedgbo.reports.comparison import conclusion
from fedgbo.reports.curves import curve, curves_csv
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.sections import slug
from fedgbo.reports.table import FILES, RENDERERS, Table
from fedgbo.reports.terminal_table import plain_table

Overrides = Annotated[
    opt.Texts, Argument(metavar="KEY=VALUE", help="Settings for all runs, which override those of the file.")
]
Out = Annotated[Path, Option("--out", "-o", help="The folder of all runs, tables and pictures.")]
PaperOverrides = Annotated[
    opt.Texts, Argument(metavar="KEY=VALUE", help="Settings for all runs, which override the paper's.")
]
Scale = Annotated[float, Option(help="Shorten all runs: with 0.1, to a tenth of the rounds and seeds.")]
Output = Annotated[Path | None, opt.Output(help="Write to this file instead of the terminal.")]
StandIns = Annotated[bool, Option("--stand-ins", help="Use synthetic data of the same shape, which needs no files.")]
DRY = {"missing": "would run", "begun": "would resume", "damaged": "would repeat"}  # states in words of --dry-run
Format = StrEnum("Format", ["TEXT", "MARKDOWN", "CSV", "JSON", "LATEX"])
FORMATS = f"The output format: {', '.join(Format)}."
MOST_FAILURES = 3  # that are told; the others mostly have the same reason


def experiment(
    file: Annotated[
        Path, Argument(metavar="FILE.toml", help="The file that describes the runs; see docs/experiments.md.")
    ],
    overrides: Overrides = None,
    to: Out = Path("runs"),
    jobs: opt.Jobs = None,
    scale: Scale = 1.0,
    dry_run: opt.DryRun = False,
    wide: opt.Wide = False,
    quiet: opt.Quiet = False,
) -> None:
    """Start the unfinished runs of an experiment file, then summarise all of its runs.

    You can stop the command at any time and repeat it: finished runs are not repeated, the others resume.

    Experiments with the same --out share their runs.
    """
    asked = read_experiment(file, Changes(scale, overrides=tuple(overrides or ())))
    found = _carry_out(asked, to, jobs, dry_run=dry_run, quiet=quiet)
    made = sections(found)
    if any(section.groups for section in made):
        _show_results(lambda *_: summary_table(made, asked.name, heading(asked, found)), found, asked, to, wide)
        _save_pictures([section for section in made if section.groups], found, asked, to)
    if left := without_accuracy(found):
        command = f"fedgbo report {shlex.quote(str(to / 'runs'))} -o report.html"
        out.print(escape(f"{len(left)} runs have no accuracy: their task has no metric; for their loss: {command}"))
    _end(asked, found)


def _carry_out(experiment: Experiment, to: Path, jobs: int | None, *, dry_run: bool, quiet: bool) -> Results:
    """Run what is missing and return the results of all runs; with `dry_run`, list the runs and exit."""
    workers = opt.worker_count(jobs)
    places = survey(experiment, to)
    if dry_run:
        _show_plan(experiment, places)
        raise typer.Exit
    try:
        (to / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {to}: {error.strerror}; choose another place") from error
    places, said = clear(places)
    for line in said:
        err.print(f"[bold red]warning:[/] {escape(line)}")
    todo = [place.job() for place in places if not place.ended]
    for config in {str(job.config.task): job.config for job in todo}.values():
        config.build_task()  # so that an error in the data is reported before the first run
    if not quiet:
        err.print(*map(escape, [*experiment.notes, f"{experiment.name}: {_tally(places)}"]), sep="\n")
    with stopped_by_ctrl_c("repeat the command to resume"), many_runs(todo, quiet) as tell:
        failed = run_jobs(todo, workers, tell) if todo else {}
    return results(experiment, to, {todo[number].out: why for number, why in failed.items()}, said)


def _show_plan(experiment: Experiment, places: Sequence[PlannedRun]) -> None:
    """List the runs by state, with the seeds of each on one line, and why folders are damaged."""
    for state in get_args(State):
        for title in with_seeds(place.title for place in places if place.find.state == state):
            out.print(escape(f"{DRY.get(state, state)} {title}"))
    for place in places:
        if place.find.state == "damaged":
            out.print(escape(f"damaged: {place.find.reason}"))
    out.print(escape(f"{experiment.heading}; {_tally(places, DRY)}; nothing was run"))


def _tally(places: Sequence[PlannedRun], words: Mapping[str, str] = MappingProxyType({})) -> str:
    counted = Counter(place.find.state for place in places)
    there = ", ".join(f"{counted[state]} {words.get(state, state)}" for state in get_args(State) if counted[state])
    return f"{len(places)} runs ({there})"


def _show_results(
    make: Callable[[Results, Experiment], Table], found: Results, asked: Experiment, to: Path, wide: bool
) -> None:
    """Print a table and write it as Markdown, CSV, LaTeX and JSON."""
    table = make(found, asked)
    show_table(table, wide)
    for kind, render in FILES.items():
        _write(to / f"{asked.file_name}.{kind}", render(table))


def _save_pictures(made: Sequence[ResultSection], found: Results, asked: Experiment, to: Path) -> None:
    """Write the curves as numbers and, where altair is installed, a picture of each section; print the results."""
    said, names = heading(asked, found), ("runs", "column", "algorithm", "accuracy")
    curves = [
        curve(group.runs, lambda record: record.accuracy, row=section.title, column="", series=group.label)
        for section in made
        for group in section.groups
    ]
    _write(to / f"{asked.file_name}-curves.csv", curves_csv(curves, said, names))
    for section in made:
        stem = to / (f"{asked.file_name}-{slug(section.title)}" if made[1:] else asked.file_name)
        draw = partial(accuracy_chart, section.groups, f"{said}: {section.title}")
        for file in save_chart_if_possible(draw, stem, ("png", "svg", "pdf")):
            out.print(f"wrote {escape(str(file))}")
    for section in made:
        for line in conclusion(section.summaries):
            out.print(escape(f"{section.title}: {line}" if made[1:] else line))


def _save_figure(figure: Figure, found: Results, asked: Experiment, to: Path, wide: bool = False) -> None:
    """Write a figure's curves as numbers and, where altair is installed, as a picture."""
    curves = figure.curves(found)
    _write(to / f"{asked.file_name}-curves.csv", curves_csv(curves, heading(asked, found), figure.names))
    said = [*asked.words, *found.lacking]
    draw = partial(panel_chart, curves, asked.title, said, figure.value, figure.factor)
    for file in save_chart_if_possible(draw, to / asked.file_name, ("png", "svg", "pdf")):
        out.print(f"wrote {escape(str(file))}")


def _write(path: Path, text: str) -> None:
    write_atomic(path, text.encode())
    out.print(f"wrote {escape(str(path))}")


def _end(experiment: Experiment, found: Results) -> None:
    """Report the runs that were set aside, diverged or failed, and exit with the code for them."""
    for line in found.set_aside:
        out.print(escape(line))
    for place in found.diverged:
        out.print(escape(f"diverged: {place.path.name}: {place.find.reason}"))
    for place, ending in found.failed[:MOST_FAILURES]:
        err.print(f"[bold red]failed:[/] {escape(f'{place.path.name}: {ending.how}')}")
    if found.failed:
        more = len(found.failed) - MOST_FAILURES
        say(f"{f'and {more} more; ' if more > 0 else ''}repeat the command to run what failed; the others are kept")
        sys.exit(code_of(ending for _, ending in found.failed))
    if found.diverged and not experiment.allow_divergence:
        err.print("runs diverged; if that is expected, write allow_divergence = true into the file")
        sys.exit(DivergenceError.exit_code)


def _table_command(make: Callable[[], Table]) -> Callable[..., None]:
    """Return the command for a table that is computed without runs."""

    def command(
        style: Annotated[Format, Option("--format", "-f", metavar="FORMAT", help=FORMATS)] = Format.TEXT,
        output: Output = None,
        wide: opt.Wide = False,
    ) -> None:
        table = make()
        shown = table if wide else table.shortened()
        text = plain_table(shown, wide) if style is Format.TEXT else RENDERERS[style](table)
        if output is not None:
            opt.check_output(output)
            _write(output, text)
        elif style is Format.TEXT and out.is_terminal:
            show_table(table, wide)
        else:
            typer.echo(text, nl=False)

    command.__doc__ = make.__doc__
    return command


def _runs_command(
    name: str, about: str, present: Callable[[Results, Experiment, Path, bool], None]
) -> Callable[..., None]:
    """Return the command for a figure or table that is made of runs."""

    def command(
        overrides: PaperOverrides = None,
        tasks: Annotated[opt.Texts, Option(help="Run only these tasks, such as cifar100,sent140.")] = None,
        optimisers: Annotated[opt.Texts, Option(help="Run only these optimisers, such as sgdm,adam.")] = None,
        scale: Scale = 1.0,
        stand_ins: StandIns = False,
        to: Out = Path("runs/paper"),
        jobs: opt.Jobs = None,
        dry_run: opt.DryRun = False,
        wide: opt.Wide = False,
        quiet: opt.Quiet = False,
    ) -> None:
        changes = Changes(scale, stand_ins, tuple(overrides or ()))
        asked = paper_experiment(name, changes, opt.comma_list(tasks), opt.comma_list(optimisers))
        try:
            found = _carry_out(asked, to, jobs, dry_run=dry_run, quiet=quiet)
        except DataError as error:
            raise DataError(f"{error} (--stand-ins uses synthetic data for all tasks)") from error
        if found.finished:
            present(found, asked, to, wide)
        _end(asked, found)
        if not found.finished:
            raise RunFolderError("no run finished, so there is nothing to show")

    repeat = "Starts the runs that are missing in --out. You can stop the command at any time and repeat it."
    command.__doc__ = f"{about}\n\n{repeat}"
    return command


paper = typer.Typer(
    no_args_is_help=True,
    help="Recompute the paper's tables and figures. figure1 to figure3, table4 and table5 start missing runs.",
)
for _name, _make in TABLES.items():
    paper.command(_name)(_table_command(_make))
for _name, _figure in FIGURES.items():
    paper.command(_name)(_runs_command(_name, _figure.about, partial(_save_figure, _figure)))
for _measured in (table4, table5):
    _name, _about = _measured.__name__, _measured.__doc__ or ""
    paper.command(_name)(_runs_command(_name, _about, partial(_show_results, _measured)))


def study(
    file: Annotated[Path, Argument(metavar="FILE.toml", help="The contenders and their grids; see docs/study.md.")],
    to: Annotated[Path, opt.Out(help="The folder of all runs.")] = Path("runs/study"),
    keep: Annotated[Path | None, Option(help="The CSV file that stores finished runs. \\[default: FILE.csv]")] = None,
    jobs: opt.Jobs = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the progress of the study and start no run.")] = False,
    wide: opt.Wide = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare algorithms at equal effort: search each one's settings on held-out data, then run the best ones.

    You can stop the command at any time and repeat it: runs in the CSV file are not repeated, the others resume.
    """
    asked, kept, workers = read_study(file), keep or file.with_suffix(".csv"), opt.worker_count(jobs)

    def run_all(todo: Sequence[Job]) -> Mapping[int, Ending]:
        with many_runs(list(todo), quiet) as tell:
            return run_jobs(todo, workers, tell)

    if not dry_run:
        with stopped_by_ctrl_c("repeat the command to resume"):
            carry_out(asked, to, kept, run_all)
    runs = kept_runs(kept)
    show_table(search_table(asked, runs), wide)
    if groups := final_groups(asked, runs):
        section = ResultSection(asked.title, tuple(groups), diverged_contenders(asked, runs))
        show_table(summary_table([section], "study", "The chosen settings on the test set"), wide)
        for line in conclusion(section.summaries):
            out.print(escape(line))
    for line in diverged_runs(asked, runs):
        out.print(escape(line))
