"""Progress of a run as it is shown to a person: a bar in a terminal or a notebook, an occasional line elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

from fedgbo.runs.callbacks import Callback
from fedgbo.runs.record import ACCURACY, Record, written
from fedgbo.runs.round import Progress

WIDE = 100  # columns of a terminal, from which a bar shows everything
PLAIN_SECONDS = 10.0  # between two lines of progress where there is no terminal
NOTEBOOK_SECONDS = 0.1  # between two updates of a notebook's bar
NOTEBOOK_WIDTH = 24  # of the bar, in characters


def score(accuracy: float | None, loss: float | None, metric: str = ACCURACY) -> str:
    """Return the primary metric or, without one, the test loss in words; empty if there is neither."""
    if accuracy is not None:
        return f"{metric} {written(accuracy, metric)}"
    return "" if loss is None else f"test loss {loss:.4g}"


def score_of(record: Record) -> str:
    """Return the score of a record in words."""
    return score(record.accuracy, record.loss, record.metric)


class _Rate(ProgressColumn):
    def render(self, bar: Bar) -> Text:
        return Text(f"{bar.speed:.1f} rounds/s" if bar.speed else "")


def bars(console: Console, transient: bool = True) -> Bars:
    """Return rich's bars with our columns; each bar has a field `score`.

    On a narrow terminal the bar is shorter, the speed is left out, and a long name is wrapped; no number is cut.
    """
    wide = console.width >= WIDE
    name = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    numbers: list[ProgressColumn] = [BarColumn(24 if wide else 10, table_column=Column(no_wrap=True))]
    numbers += [MofNCompleteColumn(table_column=Column(no_wrap=True))]
    numbers += [_Rate(table_column=Column(no_wrap=True))] if wide else []
    numbers += [
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[score]}", markup=False),
    ]
    return Bars(name, *numbers, console=console, transient=transient)


@contextmanager
def shown(label: str, wanted: bool | None) -> Iterator[tuple[Callback, ...]]:
    """Yield the callbacks that show a run of `fedgbo.run`; None: where a person watches, a terminal or a notebook."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    watched = console.is_terminal or console.is_jupyter
    if not (watched if wanted is None else wanted):
        yield ()
        return
    with run_bar(label, console, transient=False) as callback:
        yield (callback,)


@contextmanager
def run_bar(label: str, console: Console, transient: bool = True) -> Iterator[Callback]:
    """Yield the callback that shows one run on this console, from its first call on.

    Under torchrun only rank 0 calls it, so the other ranks show nothing.
    """
    shows = _NotebookBar if console.is_jupyter else _TerminalBar if console.is_terminal else _PlainLines
    callback = shows(label, console, transient)
    try:
        yield callback
    finally:
        callback.close()


class _TerminalBar:
    """A bar of rich's."""

    def __init__(self, label: str, console: Console, transient: bool) -> None:
        self._bars = bars(console, transient)
        self._bar = self._bars.add_task(label, total=None, score="")

    def __call__(self, progress: Progress) -> None:
        self._bars.start()
        self._bars.update(self._bar, completed=progress.ledger.round, total=progress.rounds)
        if progress.record is not None:
            self._bars.update(self._bar, score=score_of(progress.record))

    def close(self) -> None:
        self._bars.stop()


class _PlainLines:
    """Prints a line from time to time."""

    def __init__(self, label: str, console: Console, transient: bool) -> None:
        self._label, self._console, self._last = label, console, time.monotonic()

    def close(self) -> None:
        """Do nothing: every line is complete."""

    def __call__(self, progress: Progress) -> None:
        if progress.record is not None and time.monotonic() - self._last > PLAIN_SECONDS:
            self._last = time.monotonic()
            reached = score_of(progress.record)
            self._console.print(
                f"{self._label}: round {progress.ledger.round} of {progress.rounds}, {reached}", markup=False
            )


class _NotebookBar:
    """A line of text that is updated in place; rich's own bar in notebooks would need ipywidgets."""

    def __init__(self, label: str, console: Console, transient: bool) -> None:
        self._label, self._score, self._began, self._last = label, "", time.monotonic(), 0.0
        self._display = import_module("IPython.display").display  # a notebook has it
        self._handle: Any = None
        self._text: dict[str, str] = {}

    def __call__(self, progress: Progress) -> None:
        done, rounds, seconds = progress.ledger.round, progress.rounds, time.monotonic() - self._began
        if progress.record is not None:
            self._score = score_of(progress.record)
        full = NOTEBOOK_WIDTH * done // rounds
        drawn = "█" * full + "░" * (NOTEBOOK_WIDTH - full)
        self._text = {"text/plain": f"{self._label} {drawn} {done}/{rounds} {seconds:.0f} s {self._score}"}
        if time.monotonic() - self._last > NOTEBOOK_SECONDS:
            self._show()

    def close(self) -> None:
        if self._text:
            self._show()

    def _show(self) -> None:
        self._last = time.monotonic()
        if self._handle is None:
            self._handle = self._display(self._text, raw=True, display_id=True)
        else:
            self._handle.update(self._text, raw=True)
