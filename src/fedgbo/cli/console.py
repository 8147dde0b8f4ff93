"""Where output goes: results on standard output, everything that passes by on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from fedgbo.core.errors import FedGBOError
from fedgbo.reports.table import quantity as quantity
from fedgbo.runs.together import speaks

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def clean_errors() -> Iterator[None]:
    """Turn our own errors into a message and an exit code; others keep their traceback."""
    try:
        yield
    except FedGBOError as error:
        say(f"[bold red]error:[/] {_escaped(str(error))}")
        sys.exit(error.exit_code)


def say(message: str) -> None:
    """Print a message about how a run ended: one process of a team does it for all."""
    if speaks():
        err.print(message)


def print_whole(table: Table) -> None:
    """Print a table as wide as it is: what does not fit a narrow terminal is wrapped by it, not cut off by us."""
    width = Console(width=10_000).measure(table).maximum
    Console(width=max(out.width, width), highlight=False).print(table)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
