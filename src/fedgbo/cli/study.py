"""`fedgbo study`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import many_runs, out, show_table, stopped_by_ctrl_c
from fedgbo.experiments.jobs import Job, run_jobs
from fedgbo.experiments.results import Section, summary_table
from fedgbo.experiments.study import carry_out, final_groups, kept_runs, read_study, search_table
from fedgbo.reports.comparison import conclusion, summarise


def study(
    file: Annotated[Path, Argument(metavar="FILE.toml", help="The contenders and their grids; see docs/study.md.")],
    to: Annotated[Path, opt.Out(help="The folder of all runs.")] = Path("runs/study"),
    keep: Annotated[
        Path | None, Option(help="The CSV file that keeps the runs that ended. \\[default: FILE.csv]")
    ] = None,
    jobs: opt.Jobs = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what is done so far; run nothing.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare algorithms at equal effort: search each one's settings on held-out data, then run the best ones.

    Stop it at any time and repeat the command: runs in the CSV file are not repeated, the others resume.
    """
    asked, kept, workers = read_study(file), keep or file.with_suffix(".csv"), opt.worker_count(jobs)

    def run_all(todo: Sequence[Job]) -> Mapping[int, str]:
        with many_runs(list(todo), quiet) as tell:
            return run_jobs(todo, workers, tell)

    if not dry_run:
        with stopped_by_ctrl_c("repeat the command to resume"):
            carry_out(asked, to, kept, run_all)
    runs = kept_runs(kept)
    show_table(search_table(asked, runs))
    if groups := final_groups(asked, runs):
        section = Section(asked.title, tuple(groups))
        show_table(summary_table([section], "study", "The chosen settings on the test set"))
        for line in conclusion(summarise(groups)):
            out.print(escape(line))
