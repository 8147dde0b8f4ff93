"""The layout of result tables for a terminal: no number is cut, and numbers stay on one line."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from fedgbo.reports.table import Cell, Table

SHORT = 16  # characters of a cell that is not wrapped
HEAD_WIDTH = 11  # of a column's head, from which it is wrapped, unless the cells are wider


def needed_width(grid: RichTable, wide: bool = False) -> int:
    """Return the width at which no number and no word is cut in two or, with `wide`, no cell is wrapped."""
    measured = Console(width=10_000).measure(grid)
    return measured.maximum if wide else measured.minimum


def laid_out(table: Table, width: int, wide: bool = False) -> tuple[RichTable, list[Text]]:
    """Lay out a table for a terminal of this width, and return the lines below it: summary, footnotes, remarks.

    Where that is too narrow, heads are wrapped or values stacked. Where our values must agree with the printed ones,
    only the printed values that differ are shown then.
    """
    layouts = [(rich_table(table), True), (rich_table(table, head_width=0), True)]  # True: with all printed values
    if not table.measured and not table.stacked:
        layouts.append((rich_table(_without_agreeing(table), below=True), False))
    layouts.append((rich_table(table, below=True), True))
    grid, all_printed = next((one for one in layouts if wide or needed_width(one[0]) <= width), layouts[-1])
    return grid, _notes(table, all_printed)


def _without_agreeing(table: Table) -> Table:
    rows = (tuple(cell if cell.differs else replace(cell, published=None) for cell in row) for row in table.rows)
    return replace(table, rows=tuple(rows))


def _notes(table: Table, all_printed: bool) -> list[Text]:
    footnotes = [f"[{note.number}] {', '.join(note.places)}: {note.text}" for note in table.footnotes()]
    others = [] if all_printed else ["With --wide: all printed values."]
    return [Text(line) for line in (table.summary(all_printed), *footnotes, *table.remarks, *others) if line]


def rich_table(table: Table, below: bool = False, head_width: int = HEAD_WIDTH) -> RichTable:
    """Lay out a result table for the terminal: published values beside ours, differences in colour with a footnote.

    A column of numbers is never narrower than its numbers; other columns are wrapped between words.
    """
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, column in enumerate(table.columns):
        texts = [_cell(table, row[i], below).plain for row in table.rows]
        numbers = any(text.lstrip("+-")[:1].isdigit() for text in texts) or {*texts} == {"-"}
        numbers = numbers and i >= table.labels
        add_column(grid, column, texts, right=numbers, whole=numbers and not table.stacked, head_width=head_width)
    previous = ""
    for row in table.rows:
        if table.labels > 1 and previous not in ("", row[0].ours):
            grid.add_section()
        repeated = table.labels > 1 and previous == row[0].ours
        previous = row[0].ours
        grid.add_row(*(Text("") if repeated and cell is row[0] else _cell(table, cell, below) for cell in row))
    return grid


def add_column(
    grid: RichTable, head: str, cells: Sequence[str], *, right: bool, whole: bool = False, head_width: int = HEAD_WIDTH
) -> None:
    """Add a column that is never narrower than its longest word; short cells, and `whole` ones, are not wrapped."""
    lines = [line for cell in cells for line in cell.splitlines()]
    widest, longest = (max(map(cell_len, parts), default=0) for parts in (lines, (w for c in lines for w in c.split())))
    keep = whole or widest <= SHORT
    least = max(widest if keep else longest, *map(cell_len, head.split()), 1)
    shown = "\n".join(textwrap.fill(line, max(least, head_width)) for line in head.splitlines())
    least = max([least, *map(cell_len, shown.splitlines())]) if keep else least  # its head is not wrapped either
    grid.add_column(escape(shown), justify="right" if right else "left", no_wrap=keep, min_width=least)


def plain_table(table: Table, wide: bool = False) -> str:
    """Return a table for 80 columns without colours, or wider where numbers need it; `wide` wraps no cell."""
    grid, notes = laid_out(table, 80, wide)
    console = Console(width=max(80, needed_width(grid, wide)), color_system=None)
    with console.capture() as captured:
        console.print(Text(table.title), grid, *notes, sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _cell(table: Table, cell: Cell, below: bool) -> Text:
    text = Text(cell.ours, style="bold red" if cell.differs else "bold" if cell.strong else "")
    if cell.published is None:
        return text
    text.append(f"{chr(10) if below or table.stacked else ' '}({cell.published})", style="dim")
    return text.append(f" [{table.footnote_number(cell)}]", style="bold red") if cell.differs else text
