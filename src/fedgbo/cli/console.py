"""Output of the commands: results on standard output; messages, errors and progress on standard error."""

import errno
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table as RichTable
from rich.text import Text
from typer.core import TyperGroup

from fedgbo.core import FedGBOError, MissingExtraError, RunFolderError
from fedgbo.core.errors import RunWarning
from fedgbo.experiments.jobs import Job, News
from fedgbo.reports.charts import save_chart
from fedgbo.reports.table import Table
from fedgbo.reports.terminal_table import add_column, laid_out, needed_width
from fedgbo.runs.bar import bars, run_bar, score
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.ranks import speaks
from fedgbo.runs.record import Record


class Lines(Console):
    """A console that wraps text between words on a terminal. Elsewhere lines stay whole, for grep and for programs."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False)
        self._width = None  # COLUMNS counts at each print, not only now

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal and all(isinstance(one, str | Text) for one in objects):
            plain = not options.get("markup", True)
            texts = [Text(one) if plain else Text.from_markup(one) if isinstance(one, str) else one for one in objects]
            objects = tuple(wrapped(text, self.width) for text in texts)
        super().print(*objects, **options)


def wrapped(text: Text, width: int) -> Text:
    """Return the text with line breaks between words, so that a line is longer than the width only if one word is.

    >>> wrapped(Text("cannot write into /a/long/path: no space"), 14).plain
    'cannot write\\ninto\\n/a/long/path:\\nno space'
    """
    lines = []
    for line in text.split("\n", allow_blank=True):
        breaks, start = [], 0
        for word in re.finditer(r"\S+", line.plain):
            if word.end() - start > width and word.start() > start:
                start = word.start()
                breaks.append(start)
        lines += list(line.divide(breaks))
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


out = Lines()
err = Lines(stderr=True)


class CleanErrors(TyperGroup):
    """A group of commands that turns our own errors into a message and an exit code; others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            try:
                return super().invoke(ctx)
            except FedGBOError as error:
                say(f"[bold red]error:[/] {escape(str(error))}")
                sys.exit(error.exit_code)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the reader of a pipe has gone, as with `| head`: click ends quietly
                    raise
                say(f"[bold red]error:[/] {escape(os_error_text(error))}")
                sys.exit(RunFolderError.exit_code)


def os_error_text(error: OSError) -> str:
    """Return what a system's error says, with the file where it names one.

    >>> os_error_text(OSError(28, "No space left on device", "a.csv"))
    'a.csv: No space left on device'
    """
    return f"{error.filename or 'cannot read or write'}: {error.strerror or error}"


def _show_warning(usual: Any, message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, RunWarning):
        say(f"[bold yellow]warning:[/] {escape(str(message))}")
    else:
        usual(message, category, *place, **more)


@contextmanager
def stopped_by_ctrl_c(hint: str) -> Iterator[None]:
    """On Ctrl-C, print how to resume, and exit with the code for it."""
    try:
        yield
    except KeyboardInterrupt as error:
        say(f"stopped; {escape(hint)}")
        sys.exit(exit_code(error))


class Hangup(KeyboardInterrupt):
    """The terminal was closed (SIGHUP)."""


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return the exit code of a process that a signal stopped: 128 + its number, as shells have it."""
    return 129 if isinstance(stopped, Hangup) else 130


def say(message: str) -> None:
    """Print a message on standard error, from one process only under torchrun."""
    if speaks():
        with suppress(OSError):  # a terminal that was closed
            err.print(message)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a failed write into an error that names the file, or `place` where the system names none."""
    try:
        yield
    except OSError as error:
        named = error.filename or place
        raise RunFolderError(f"cannot write {named}: {error.strerror}; choose another place") from error


def save_chart_if_possible(draw: Callable[[], Any], path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw and save a chart and return its files; without altair, print how to install it and return no files."""
    try:
        return save_chart(draw(), path, kinds)
    except MissingExtraError as error:
        err.print(escape(str(error)))
        return []


def rounds_done(record: Record) -> str:
    """Write how many rounds a run has done, and in which time."""
    return f"{record.round} round{'' if record.round == 1 else 's'} in {record.seconds:.1f} s"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    out.print_json(json.dumps(value))


def print_whole(table: RichTable, wide: bool = False) -> None:
    """Print a table in the width of the terminal, or wider where a number or a word would be cut in two.

    With `wide`, no cell is wrapped.
    """
    if table.title:
        out.print(table.title)
        table.title = None
    Console(width=max(out.width, needed_width(table, wide)), highlight=False).print(table)


def simple_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()
) -> RichTable:
    """Return a table with a rule below its header; the columns named in `right` are right-aligned, and not wrapped."""
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    listed = [[Text.from_markup(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    for i, name in enumerate(columns):
        add_column(table, name, [row[i].plain for row in listed], right=name in right, whole=name in right)
    for row in listed:
        table.add_row(*row)
    return table


def show_table(table: Table, wide: bool = False) -> None:
    """Print a result table and its notes; without `wide`, its most important columns."""
    shown = table if wide else table.shortened()
    out.print(Text(shown.title, style="bold"))
    grid, notes = laid_out(shown, out.width, wide)
    print_whole(grid, wide)
    for line in notes:
        out.print(line)


def show_plan(runs: Sequence[str], notes: Sequence[str], where: str, done: Sequence[str] = ()) -> None:
    """Print what --dry-run is asked for: the runs, with the seeds of each on one line; nothing else is done."""
    planned = [*(f"finished {name}" for name in with_seeds(done)), *(f"would run {name}" for name in with_seeds(runs))]
    for line in (*notes, *planned, f"{len(runs)} runs on {where}; nothing was run"):
        out.print(escape(line))


def with_seeds(titles: Iterable[str]) -> list[str]:
    """Join the titles of runs that differ only in their seed.

    >>> with_seeds(["fedavg seed 0", "fedavg seed 1", "fedavg seed 2", "fedgbo seed 0", "fedavg seed 7"])
    ['fedavg seeds 0-2, 7', 'fedgbo seed 0']
    """
    found: dict[str, list[list[int]]] = {}  # ranges of seeds
    for title in titles:
        name, _, seed = title.rpartition(" seed ")
        ranges = found.setdefault(name, [])
        if ranges and ranges[-1][-1] == int(seed) - 1:
            ranges[-1] = [ranges[-1][0], int(seed)]
        else:
            ranges.append([int(seed)])
    texts = {name: ", ".join("-".join(map(str, one)) for one in ranges) for name, ranges in found.items()}
    return [f"{name} {'seed' if text.isdecimal() else 'seeds'} {text}" for name, text in texts.items()]


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
            reached = escape(score(last.accuracy, None, last.metric)) if last else ""
            how = f"{reached or how}, {last.seconds:.1f} s" if last else "was finished before"
        if not quiet:
            err.print(f"\\[{len(ended):>{len(str(len(jobs)))}}/{len(jobs)}] {jobs[news.job].title}: {how}")

    if quiet or not err.is_terminal:
        yield show_line
        return

    with bars(err) as shown:
        rounds = {number: job.config.rounds for number, job in enumerate(jobs)}
        overall = shown.add_task("all runs", total=sum(rounds.values()), score="")
        active: dict[int, TaskID] = {}
        done: dict[int, int] = {}

        def show(news: News) -> None:
            show_line(news)
            if news.ended is None:
                if news.job not in active:
                    active[news.job] = shown.add_task(f"  {jobs[news.job].title}", total=news.rounds, score="")
                shown.update(active[news.job], completed=news.round)
                if news.accuracy is not None:
                    shown.update(active[news.job], score=score(news.accuracy, None, news.metric))
            elif news.job in active:
                shown.remove_task(active.pop(news.job))
            if news.ended == "finished" and news.job not in latest:  # before this command: it says nothing of the speed
                del rounds[news.job]
            else:
                done[news.job] = news.round if news.ended is None else rounds[news.job]
            shown.update(overall, completed=sum(done.values()), total=sum(rounds.values()), visible=bool(rounds))

        yield show
