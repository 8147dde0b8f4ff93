"""A table as Markdown, CSV, JSON or LaTeX, and rows of numbers as CSV; the terminal's version is in cli/console.py."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from fedgbo.reports.latex import latex
from fedgbo.reports.table import Cell, Table, one_line


def markdown(table: Table) -> str:
    """Write GitHub's Markdown: each of our values, the printed one beside it, and a footnote for every difference."""
    lines = [f"**{markdown_text(table.title)}**", "", _line(map(markdown_text, table.columns))]
    lines += [_line(["---"] * len(table.columns))]
    lines += [_line([_cell(table, cell) for cell in row]) for row in table.rows]
    lines += [line for said in (table.summary(), *table.remarks) if said for line in ("", markdown_text(said))]
    for footnote in table.footnotes():
        said = f"{', '.join(footnote.places)}: {footnote.text}"
        lines += ["", f"[^{footnote.number}]: {markdown_text(said)}"]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    r"""Return text that Markdown shows as it is, also inside a table.

    >>> markdown_text("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    marked = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_csv(table: Table) -> str:
    """Write each column that the paper has twice, ours and `(printed)`, and the notes of a row in its last column."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    printed = [any(row[i].published is not None for row in table.rows) for i in range(len(table.columns))]
    header: list[str] = []
    for column, twice in zip(table.columns, printed, strict=True):
        header += [column, f"{column} (printed)"] if twice else [column]
    writer.writerow([*header, "Notes"])
    for row in table.rows:
        values: list[str] = []
        for cell, twice in zip(row, printed, strict=True):
            values += [cell.ours, cell.published or ""] if twice else [cell.ours]
        notes = dict.fromkeys(cell.note for cell in row if cell.differs)
        writer.writerow([*values, " ".join(notes)])
    return text.getvalue()


def numbers_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of plain values, with the union of their keys as header; what a row lacks stays empty."""
    text = StringIO()
    names = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(table: Table) -> str:
    """Write everything: a row is an object of cells by column, a cell has ours, published, differs, note and exact."""
    content = {
        "name": table.name,
        "title": table.title,
        "columns": table.columns,
        "rows": [{column: asdict(cell) for column, cell in zip(table.columns, row, strict=True)} for row in table.rows],
        "summary": table.summary(),
        "footnotes": [asdict(footnote) for footnote in table.footnotes()],
        "remarks": table.remarks,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


RENDERERS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "csv": to_csv,
    "json": to_json,
    "latex": latex,
}

FILES: dict[str, Callable[[Table], str]] = {  # by the ends of their names
    "md": markdown,
    "csv": lambda table: f"# {one_line(table.title)}\n{to_csv(table)}",
    "tex": latex,
    "json": to_json,
}


def _cell(table: Table, cell: Cell) -> str:
    ours = markdown_text(cell.ours)
    ours = f"**{ours}**" if cell.differs or cell.strong else ours
    if cell.published is None:
        return ours
    printed = markdown_text(cell.published)
    mark = f"[^{table.footnote_number(cell)}]" if cell.differs else ""
    return f"{ours}<br>printed: {printed}{mark}" if table.stacked else f"{ours} ({printed}){mark}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
