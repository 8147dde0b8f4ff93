"""`fedgbo report` and `fedgbo watch`."""

import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json, print_whole, simple_table, writing
from fedgbo.core import RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.experiments.shelf import labels_of, titles_of
from fedgbo.reports.label_skew import skew_of
from fedgbo.reports.load import collect
from fedgbo.reports.report_files import build_page, write_figures
from fedgbo.reports.run_progress import Follower, View
from fedgbo.reports.sections import sections_of
from fedgbo.reports.tensorboard import write_events
from fedgbo.runs.record import ACCURACY, written

ALL = ("run", "task", "algorithm", "seed", "round", "accuracy", "best", "s/round", "ends", "status")
PATIENCE = 10.0  # seconds without a running run until watch ends: a comparison's next run starts sooner
NAME_WIDTH = 30  # of a run's name without --wide; longer names are wrapped
STYLES = {"running": "green", "finished": "", "died": "bold red", "diverged": "red", "damaged": "bold red"}


def report(
    runs: Annotated[list[Path], Argument(help="Run folders, or folders that contain run folders at any depth.")],
    output: Annotated[
        Path | None,
        opt.Output(help="The file of the page. \\[default: report.html, unless --figures or --tensorboard is given]"),
    ] = None,
    figures: Annotated[
        Path | None, Option(help="A folder for figures (PNG, SVG, PDF) and tables (Markdown, LaTeX, CSV).")
    ] = None,
    tensorboard: Annotated[Path | None, Option(help="A folder for TensorBoard's event files.")] = None,
    title: Annotated[str, Option(help="The title of the page.")] = "fedgbo report",
    own_tasks: Annotated[
        bool, Option("--own-tasks", help="Run the Python files of your own tasks, to show the labels of clients.")
    ] = False,
) -> None:
    """Show runs on one page that opens offline, as figures and tables for a paper, or in TensorBoard.

    fedgbo report runs/mine -o report.html

    fedgbo report runs/a runs/b --figures paper/figures
    """
    if output is None and figures is None and tensorboard is None:
        output = Path("report.html")
    if output is not None:
        opt.check_output(output)
    opt.check_folders(runs)
    found = collect(runs)
    sections = [section for section in sections_of(found.runs) if section.lines]
    for problem in [*found.problems, *(note for section in sections for note in section.notes)]:
        err.print(f"note: {problem.path}: {problem.reason}", markup=False)
    if not sections:
        where = ", ".join(map(str, runs))
        raise RunFolderError(f"there is no run with an evaluation in {where}; fedgbo run or compare makes some")
    if output is not None or figures is not None:
        labels = [skew_of(section, own_tasks) for section in sections]
    if output is not None:
        page = build_page(sections, labels, found.problems, title)
        with writing(output):
            write_atomic(output, page.encode(errors="backslashreplace"))  # a folder's name may be any bytes
        out.print(f"page     {output}", markup=False)
    if figures is not None:
        with writing(figures):
            count = len(write_figures(sections, labels, figures))
        out.print(f"figures  {count} files in {figures}", markup=False)
    if tensorboard is not None:
        with writing(tensorboard):
            count = len(write_events(sections, tensorboard))
        out.print(f"events   {count} runs; tensorboard --logdir {tensorboard}", markup=False)


def watch(
    folder: Annotated[Path, Argument(help="A folder that contains runs at any depth.")] = Path("runs"),
    once: Annotated[bool, Option("--once", help="Print one table and exit.")] = False,
    wide: opt.Wide = False,
    as_json: Annotated[bool, Option("--json", help="Print the runs as JSON, once.")] = False,
    every: Annotated[float, Option(help="The seconds between updates of the table.", min=0.1)] = 1.0,
) -> None:
    """Follow the runs in a folder, including those of other processes: status, rounds, accuracy, speed, estimated end.

    Ctrl-C ends the command; the runs continue. It ends by itself when no run has been running for ten seconds.

    Without a terminal it prints one table, as with --once.
    """
    opt.check_folders([folder])
    follower = Follower(folder)
    if as_json:
        told = [{**asdict(view), "path": str(view.path)} for view in follower.look()]
        print_json([{key: value for key, value in view.items() if key != "config"} for view in told])
    elif once or not out.is_terminal:
        views = follower.look()
        print_whole(_runs_table(views, folder, wide), wide)
        out.print(*_below(views), sep="\n")
    else:
        _follow(follower, folder, every, wide)


def _follow(follower: Follower, folder: Path, every: float, wide: bool) -> None:
    last = time.monotonic()  # that a run was running, or none had started

    def picture() -> Group:
        nonlocal last
        views = follower.look()
        if not views or any(view.status == "running" for view in views):
            last = time.monotonic()
        room = max(3, out.height - 8 - sum(bool(view.problem) for view in views))
        shown = sorted(views, key=lambda view: view.status != "running")[:room]  # running ones first, if not all fit
        table = _runs_table([view for view in views if view in shown], folder, wide)
        return Group(table, *_below(views, hidden=len(views) - len(shown)), Text("Ctrl-C to leave", style="dim"))

    try:
        with Live(picture(), console=out, auto_refresh=False) as live:
            while time.monotonic() < last + PATIENCE:
                time.sleep(every)
                live.update(picture(), refresh=True)
        out.print("no run is running")
    except KeyboardInterrupt:
        return


def _names(views: Sequence[View], folder: Path, wide: bool) -> list[str]:
    """Return the runs' names: their folders or, where these are long, the algorithms with what differs, and seeds."""
    folders = [str(view.path.relative_to(folder)) if view.path != folder else folder.name for view in views]
    if wide or max(map(len, folders), default=0) <= NAME_WIDTH or any(view.config is None for view in views):
        return folders
    configs = [view.config for view in views if view.config is not None]
    short = titles_of(configs, labels_of(configs))
    return short if len(set(short)) == len(short) else folders


def _runs_table(views: Sequence[View], folder: Path, wide: bool) -> Table:
    names = dict(zip((view.path for view in views), _names(views, folder, wide), strict=True))

    def cells(view: View) -> dict[str, Text]:
        name = names[view.path]
        scores = {"accuracy": view.latest, "best": view.best}
        texts = {
            "run": name if wide else "\n".join(textwrap.wrap(name, NAME_WIDTH)),
            "task": view.task,
            "algorithm": view.label,
            "seed": "" if view.seed is None else str(view.seed),
            "round": f"{view.round}/{view.rounds}" if view.rounds else "",
            **{key: "" if value is None else written(value, view.metric) for key, value in scores.items()},
            "s/round": "" if view.seconds_per_round is None else f"{view.seconds_per_round:.3g}",
            "ends": "" if view.ends_at is None else _end(view.ends_at, wide),
        }
        return {key: Text(text) for key, text in texts.items()} | {
            "status": Text(view.status, STYLES.get(view.status, "yellow"))
        }

    columns = ALL if wide else ("run", "round", "accuracy", "ends", "status")
    right = ("seed", "round", "accuracy", "best", "s/round", "ends")
    rows = [[row[name] for name in columns] for row in map(cells, views)]
    metrics = {view.metric for view in views}
    own = metrics.pop() if len(metrics) == 1 else ACCURACY
    heads, numbers = ([own if name == ACCURACY else name for name in names] for names in (columns, right))
    return simple_table(escape(f"runs in {folder}"), heads, rows, numbers)


def _below(views: Sequence[View], hidden: int = 0) -> list[Text]:
    counts = Counter(view.status for view in views)
    tally = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no runs yet"
    more = f"; {hidden} more do not fit this terminal" if hidden else ""
    return [*(Text(f"{view.path}: {view.problem}", style="red") for view in views if view.problem), Text(tally + more)]


def _end(at: float, wide: bool = True) -> str:
    """Return the time left, e.g. "in 12 min", and with `wide` the time of day, e.g. "14:05, in 12 min".

    >>> _end(0.0, wide=False)
    'in 0 s'
    """
    left = max(0, round(at - time.time()))
    hours, minutes = divmod(left // 60, 60)
    length = f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else f"{left} s"
    days = "" if left < 12 * 3600 else "%d %b "
    return f"{time.strftime(f'{days}%H:%M', time.localtime(at))}, in {length}" if wide else f"in {length}"
