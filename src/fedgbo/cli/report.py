"""`fedgbo report`."""

from pathlib import Path
from typing import Annotated

import typer

from fedgbo.cli.console import clean_errors, err, out
from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.reports.label_skew import labels_of
from fedgbo.reports.load import collect
from fedgbo.reports.report_files import build_page, write_figures
from fedgbo.reports.sections import sections_of
from fedgbo.reports.tensorboard import write_events
from fedgbo.runs.files import write_atomic


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some, however deep.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page. \\[default: report.html, unless other output is named]"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="A folder for the figures (PNG, SVG, PDF) and tables (Markdown, LaTeX, CSV).")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's event files.")] = None,
    title: Annotated[str, typer.Option(help="Of the page.")] = "fedgbo report",
    own_tasks: Annotated[
        bool, typer.Option("--own-tasks", help="Run the files of tasks that are no built-in ones, to count labels.")
    ] = False,
) -> None:
    """Show runs on one page that opens offline, as figures and tables for a paper, or in TensorBoard.

    fedgbo report runs/mine -o report.html

    fedgbo report runs/a runs/b --figures paper/figures
    """
    with clean_errors():
        if output is None and figures is None and tensorboard is None:
            output = Path("report.html")
        if output is not None and (output.is_dir() or not output.parent.is_dir()):
            raise ConfigError(f"--output {output}: cannot write there; give a file in a folder that exists")
        found = collect(runs)
        sections = [section for section in sections_of(found.runs) if section.lines]
        for problem in [*found.problems, *(note for section in sections for note in section.notes)]:
            err.print(f"note: {problem.path}: {problem.reason}", markup=False)
        if not sections:
            where = ", ".join(map(str, runs))
            raise RunFolderError(f"there is no run with an evaluation in {where}; fedgbo run or compare makes some")
        try:
            if output is not None or figures is not None:
                labels = [labels_of(section, own_tasks) for section in sections]
            if output is not None:
                page = build_page(sections, labels, found.problems, title)
                write_atomic(output, page.encode(errors="backslashreplace"))  # a folder's name may be any bytes
                out.print(f"page     {output}", markup=False)
            if figures is not None:
                out.print(f"figures  {len(write_figures(sections, labels, figures))} files in {figures}", markup=False)
            if tensorboard is not None:
                count = len(write_events(sections, tensorboard))
                out.print(f"events   {count} runs; tensorboard --logdir {tensorboard}", markup=False)
        except OSError as error:
            raise ConfigError(f"cannot write {error.filename}: {error.strerror}; choose another place") from error
