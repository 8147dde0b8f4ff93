"""`fedgbo paper TABLE`: the paper's tables, recomputed and held against the print."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from fedgbo.cli.console import clean_errors
from fedgbo.core.errors import ConfigError
from fedgbo.experiments.paper import TABLES, Cell, Table
from fedgbo.reports.table import RENDERERS
from fedgbo.runs.files import write_atomic

app = typer.Typer(
    no_args_is_help=True,
    help="The paper's tables and figures beside the printed values. Figures and tables 4 and 5 run what is missing.",
)


class Format(StrEnum):
    """How a table is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    LATEX = "latex"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to write it.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="A file to write instead of the terminal.")]


def rich_table(table: Table) -> RichTable:
    """Lay a table out for the terminal: the printed value beside ours, differences in colour and with a footnote."""
    grid = RichTable(title=escape(table.title), title_justify="left", show_lines=table.stacked)
    for i, column in enumerate(table.columns):
        numbers = any(row[i].ours[:1].isdigit() for row in table.rows)
        grid.add_column(escape(column), justify="right" if numbers else "left")
    previous = ""
    for row in table.rows:
        if table.labels > 1 and previous not in ("", row[0].ours):
            grid.add_section()
        previous = row[0].ours
        grid.add_row(*(_cell(table, cell) for cell in row))
    return grid


def notes(table: Table) -> list[Text]:
    """Return what stands below a table: the tally, the footnotes, the remarks."""
    footnotes = [f"[{note.number}] {', '.join(note.places)}: {note.text}" for note in table.footnotes()]
    return [Text(line) for line in (table.summary(), *footnotes, *table.remarks) if line]


def plain(table: Table) -> str:
    """Return the terminal's version without colours, as wide as the table needs."""
    wide = Console(width=10_000)
    console = Console(width=max(100, wide.measure(rich_table(table)).maximum), color_system=None)
    with console.capture() as captured:
        console.print(rich_table(table), *notes(table), sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _cell(table: Table, cell: Cell) -> Text:
    text = Text(cell.ours, style="bold red" if cell.differs else "bold" if cell.strong else "")
    if cell.published is None:
        return text
    text.append(f"\nprinted: {cell.published}" if table.stacked else f" ({cell.published})", style="dim")
    return text.append(f" [{table.footnote_number(cell)}]", style="bold red") if cell.differs else text


def _command(make: Callable[[], Table]) -> Callable[[Format, Path | None], None]:
    def command(style: FormatOption = Format.TEXT, output: OutputOption = None) -> None:
        table, console = make(), Console()
        if style is Format.TEXT and output is None and console.is_terminal:
            console.print(rich_table(table), *notes(table), sep="\n")
            return
        text = plain(table) if style is Format.TEXT else RENDERERS[style](table)
        if output is None:
            typer.echo(text, nl=False)
        else:
            with clean_errors():
                _write(output, text)

    command.__doc__ = make.__doc__
    return command


def _write(path: Path, text: str) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--output {path}: cannot write there; give a file in a folder that exists")
    write_atomic(path, text.encode())
    typer.echo(f"wrote {path}")


for _name, _make in TABLES.items():
    app.command(_name)(_command(_make))
