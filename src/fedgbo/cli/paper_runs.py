"""`fedgbo paper figure1 ... table5`: the paper's experiments, run where they are missing, and drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedgbo.cli.console import clean_errors
from fedgbo.cli.experiment import (
    DryRunOption,
    JobsOption,
    OutOption,
    OverridesArgument,
    QuietOption,
    ScaleOption,
    carry_out,
    end,
    save_picture,
    save_table,
    show_files,
    show_table,
)
from fedgbo.core.errors import RunFolderError
from fedgbo.experiments.experiment import Changes, Experiment
from fedgbo.experiments.paper.from_runs import FIGURES, Figure, paper_experiment, table4, table5
from fedgbo.experiments.results import Results
from fedgbo.reports.table import Table

MEASURED: dict[str, Callable[[Results, Experiment], Table]] = {"table4": table4, "table5": table5}

TasksOption = Annotated[list[str] | None, typer.Option(help="Only these tasks, e.g. cifar100,sent140.")]
OptimisersOption = Annotated[list[str] | None, typer.Option(help="Only these optimisers, e.g. sgdm,adam.")]
StandInsOption = Annotated[bool, typer.Option("--stand-ins", help="Made-up data of the same shape, without any files.")]


def add_to(app: typer.Typer) -> None:
    """Add a command for each figure and each table that is made of runs."""
    for name, figure in FIGURES.items():
        app.command(name)(_command(name, figure.about, _drawing(figure)))
    for name, make in MEASURED.items():
        app.command(name)(_command(name, make.__doc__ or "", _tabulating(make)))


def _command(name: str, about: str, present: Callable[[Results, Experiment, Path], None]) -> Callable[..., None]:
    def command(
        overrides: OverridesArgument = None,
        tasks: TasksOption = None,
        optimisers: OptimisersOption = None,
        scale: ScaleOption = 1.0,
        stand_ins: StandInsOption = False,
        to: OutOption = Path("runs/paper"),
        jobs: JobsOption = None,
        dry_run: DryRunOption = False,
        quiet: QuietOption = False,
    ) -> None:
        with clean_errors():
            changes = Changes(scale, stand_ins, tuple(overrides or ()))
            asked = paper_experiment(name, changes, _listed(tasks), _listed(optimisers))
            found = carry_out(asked, to, jobs, dry_run=dry_run, quiet=quiet)
            if found is None:
                return
            if found.finished:
                present(found, asked, to)
            end(asked, found)
            if not found.finished:
                raise RunFolderError("no run finished, so there is nothing to show")

    command.__doc__ = f"{about}\n\nRuns what is missing in --out; stop it at any time and repeat the command."
    return command


def _drawing(figure: Figure) -> Callable[[Results, Experiment, Path], None]:
    def draw(found: Results, asked: Experiment, to: Path) -> None:
        curves = figure.curves(found)
        show_files(save_picture(curves, asked, found, to, figure.value, figure.factor, figure.names))

    return draw


def _tabulating(make: Callable[[Results, Experiment], Table]) -> Callable[[Results, Experiment, Path], None]:
    def tabulate(found: Results, asked: Experiment, to: Path) -> None:
        table = make(found, asked)
        show_table(table)
        show_files(save_table(table, to / asked.file_name))

    return tabulate


def _listed(given: Sequence[str] | None) -> list[str]:
    """Split lists at commas.

    >>> _listed(["cifar100,Sent140", "femnist"])
    ['cifar100', 'sent140', 'femnist']
    """
    return [name.strip().lower() for text in given or () for name in text.split(",") if name.strip()]
