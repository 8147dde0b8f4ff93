"""A table as Markdown, CSV, JSON or LaTeX; the terminal's version is in cli/paper.py."""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO

from fedgbo.experiments.paper.latex import latex
from fedgbo.experiments.paper.table import Cell, Table


def markdown(table: Table) -> str:
    """Write GitHub's Markdown: each of our values, the printed one beside it, and a footnote for every difference."""
    lines = [f"**{table.title}**", "", _line(table.columns), _line(["---"] * len(table.columns))]
    lines += [_line([_cell(table, cell) for cell in row]) for row in table.rows]
    lines += [line for said in (table.summary(),) if said for line in ("", said)]
    lines += [line for remark in table.remarks for line in ("", remark)]
    for footnote in table.footnotes():
        lines += ["", f"[^{footnote.number}]: {', '.join(footnote.places)}: {footnote.text}"]
    return "\n".join(lines) + "\n"


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
    "csv": lambda table: f"# {table.title}\n{to_csv(table)}",
    "tex": latex,
    "json": to_json,
}


def _cell(table: Table, cell: Cell) -> str:
    ours = f"**{cell.ours}**" if cell.differs or cell.strong else cell.ours
    if cell.published is None:
        return ours
    mark = f"[^{table.footnote_number(cell)}]" if cell.differs else ""
    return f"{ours}<br>printed: {cell.published}{mark}" if table.stacked else f"{ours} ({cell.published}){mark}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
