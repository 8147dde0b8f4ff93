"""`fedgbo watch`."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedgbo.cli.console import clean_errors, out, print_whole
from fedgbo.reports.run_progress import Follower, View

STYLES = {"running": "green", "finished": "", "died": "bold red", "diverged": "red", "damaged": "bold red"}


def watch(
    folder: Annotated[Path, typer.Argument(help="A folder with runs in it, however deep.")] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON, once.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
) -> None:
    """Follow the runs in a folder, those of other processes too: status, rounds, accuracy, speed, estimated end.

    Ctrl-C ends it, and leaves the runs alone. Where output is no terminal, it prints one table, as with --once.
    """
    with clean_errors():
        follower = Follower(folder)
        if as_json:
            out.print_json(json.dumps([{**asdict(view), "path": str(view.path)} for view in follower.look()]))
        elif once or not out.is_terminal:
            views = follower.look()
            print_whole(_table(views, folder, time.time()))
            out.print(*_below(views), sep="\n")
        else:
            _follow(follower, folder, every)


def _follow(follower: Follower, folder: Path, every: float) -> None:
    def picture() -> Group:
        views = follower.look()
        room = max(3, out.height - 8 - sum(bool(view.problem) for view in views))
        shown = sorted(views, key=lambda view: view.status != "running")[:room]  # running ones first, if not all fit
        table = _table([view for view in views if view in shown], folder, time.time())
        return Group(table, *_below(views, hidden=len(views) - len(shown)))

    try:
        with Live(picture(), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(picture(), refresh=True)
    except KeyboardInterrupt:
        return


def _table(views: Sequence[View], folder: Path, now: float) -> Table:
    table = Table(title=escape(f"runs in {folder}"), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("run", "task", "algorithm"):
        table.add_column(name)
    for name in ("seed", "round", "accuracy", "best", "s/round", "ends"):
        table.add_column(name, justify="right")
    table.add_column("status")
    for view in views:
        cells = [str(view.path.relative_to(folder)) if view.path != folder else folder.name, view.task, view.label]
        cells += ["" if view.seed is None else str(view.seed), f"{view.round}/{view.rounds}" if view.rounds else ""]
        cells += [_share(view.latest), _share(view.best)]
        cells += ["" if view.seconds_per_round is None else f"{view.seconds_per_round:.3g}", _end(view.ends_at, now)]
        table.add_row(*(Text(cell) for cell in cells), Text(view.status, style=STYLES.get(view.status, "yellow")))
    return table


def _below(views: Sequence[View], hidden: int = 0) -> list[Text]:
    counts = Counter(view.status for view in views)
    tally = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no runs yet"
    more = f"; {hidden} more do not fit this terminal" if hidden else ""
    return [*(Text(f"{view.path}: {view.problem}", style="red") for view in views if view.problem), Text(tally + more)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _end(at: float | None, now: float) -> str:
    """Return when, and in how long.

    >>> _end(None, 0)
    ''
    """
    if at is None:
        return ""
    left = max(0, round(at - now))
    hours, minutes = divmod(left // 60, 60)
    length = f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else f"{left} s"
    days = "" if left < 12 * 3600 else "%d %b "
    return f"{time.strftime(f'{days}%H:%M', time.localtime(at))}, in {length}"
