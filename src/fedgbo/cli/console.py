"""Output of the commands: results on standard output; messages, errors and progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table as RichTable
from rich.text import Text
from typer.core import TyperGroup

from fedgbo.core import FedGBOError, MissingExtraError
from fedgbo.experiments.jobs import Job, News
from fedgbo.reports.charts import save_chart
from fedgbo.reports.table import Table, rich_table, table_notes
from fedgbo.reports.table import quantity as quantity
from fedgbo.runs.bar import bars, run_bar, score
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.ranks import speaks

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


class CleanErrors(TyperGroup):
    """A group of commands that turns our own errors into a message and an exit code; others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FedGBOError as error:
            say(f"[bold red]error:[/] {escape(str(error))}")
            sys.exit(error.exit_code)


@contextmanager
def stopped_by_ctrl_c(hint: str) -> Iterator[None]:
    """On Ctrl-C, print how to resume and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {escape(hint)}")
        sys.exit(130)


def say(message: str) -> None:
    """Print a message on standard error, from one process only under torchrun."""
    if speaks():
        err.print(message)


def save_chart_if_possible(draw: Callable[[], Any], path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw and save a chart and return its files; without altair, print how to install it and return no files."""
    try:
        return save_chart(draw(), path, kinds)
    except MissingExtraError as error:
        err.print(escape(str(error)))
        return []


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    out.print_json(json.dumps(value))


def print_whole(table: RichTable) -> None:
    """Print a table at its full width. A narrow terminal wraps the lines; nothing is cut off."""
    width = Console(width=10_000).measure(table).maximum
    Console(width=max(out.width, width), highlight=False).print(table)


def simple_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()
) -> RichTable:
    """Return a table with a rule below its header; the columns named in `right` are right-aligned."""
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def show_table(table: Table) -> None:
    """Print a result table and its notes."""
    print_whole(rich_table(table))
    for line in table_notes(table):
        out.print(line)


@contextmanager
def one_run(label: str, quiet: bool) -> Iterator[list[Callback]]:
    """Yield the callbacks that show one run: a bar on a terminal, an occasional line elsewhere."""
    if quiet:
        yield []
        return
    with run_bar(label, err) as callback:
        yield [callback]


@contextmanager
def many_runs(jobs: list[Job], quiet: bool) -> Iterator[Callable[[News], None]]:
    """Yield the function that shows the news of many jobs: bars on a terminal, a line per ended job everywhere."""
    latest: dict[int, News] = {}
    ended: list[int] = []

    def show_line(news: News) -> None:
        if news.ended is None:
            latest[news.job] = news
            return
        ended.append(news.job)
        how, last = escape(news.ended), latest.get(news.job)
        if news.ended == "finished":
            how = f"{score(last.accuracy, None) or how}, {last.seconds:.1f} s" if last else "was finished before"
        if not quiet:
            err.print(f"\\[{len(ended):>{len(str(len(jobs)))}}/{len(jobs)}] {jobs[news.job].title}: {how}")

    if quiet or not err.is_terminal:
        yield show_line
        return

    with bars(err) as shown:
        overall = shown.add_task("all runs", total=sum(job.config.rounds for job in jobs), score="")
        active: dict[int, TaskID] = {}
        done: dict[int, int] = {}

        def show(news: News) -> None:
            show_line(news)
            if news.ended is None:
                if news.job not in active:
                    active[news.job] = shown.add_task(f"  {jobs[news.job].title}", total=news.rounds, score="")
                shown.update(active[news.job], completed=news.round)
                if news.accuracy is not None:
                    shown.update(active[news.job], score=score(news.accuracy, None))
            elif news.job in active:
                shown.remove_task(active.pop(news.job))
            done[news.job] = news.round if news.ended is None else jobs[news.job].config.rounds
            shown.update(overall, completed=sum(done.values()))

        yield show
