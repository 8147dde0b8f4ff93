"""Tables and numbers as text: Markdown, CSV, JSON and LaTeX. `terminal_table.py` lays them out for a terminal.

A cell holds our value and, in a table of the paper, the printed value and why the two differ.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

UNEXPLAINED = "differs from the printed value; reason unknown"

TEX = {character: "\\" + character for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$", "‖": r"$\|$", "±": r"$\pm$",
    "·": r"$\cdot$", "×": r"$\times$", "∇": r"$\nabla$",
    "√": r"$\surd$", "²": "$^2$", "₁": "$_1$", "₂": "$_2$", "β": r"$\beta$", "η": r"$\eta$", "ε": r"$\epsilon$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Our value as text, the printed one where the paper has it, and a note where the two differ."""

    ours: str
    published: str | None = None
    note: str = ""
    differs: bool = False
    exact: float | None = None  # our value before rounding
    strong: bool = False  # the best of its kind

    @classmethod
    def compared(cls, ours: str, published: str | None, *, note: str = "", exact: float | None = None) -> "Cell":
        """Make a cell that differs where the texts do; the note is kept only then."""
        differs = published is not None and ours != published
        return cls(ours, published, (note or UNEXPLAINED) if differs else "", differs, exact)


@dataclass(frozen=True)
class Footnote:
    """A note, and the cells that it belongs to."""

    number: int
    places: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first `labels` cells of a row name it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    remarks: tuple[str, ...] = ()  # about the table as a whole
    stacked: bool = False  # one long cell per row: the printed value goes below ours, not beside it
    measured: bool = False  # our values come from runs; they need not agree with the printed ones
    brief: tuple[str, ...] = ()  # the columns that a terminal shows without --wide; by default all

    def shortened(self, others: str = "With --wide") -> "Table":
        """Return the table with its brief columns alone, and a remark that says where the others are."""
        if not self.brief or self.brief == self.columns:
            return self
        kept = [i for i, column in enumerate(self.columns) if column in self.brief]
        left = [column for column in self.columns if column not in self.brief]
        remarks = [remark for remark in self.remarks if remark.partition(":")[0] not in left]  # not about these
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            labels=sum(i < self.labels for i in kept),
            remarks=(*remarks, f"{others}: {', '.join(left)}."),
        )

    def placed(self) -> Iterator[tuple[str, Cell]]:
        """Yield every cell with its place, such as 'Sent140 Mimelite RMSProp'."""
        for row in self.rows:
            label = " ".join(cell.ours for cell in row[: self.labels])
            for column, cell in zip(self.columns, row, strict=True):
                yield label if self.stacked else f"{label} {column}", cell

    def footnotes(self) -> tuple[Footnote, ...]:
        """Return the differences from the print, one footnote for each reason."""
        places: dict[str, list[str]] = {}
        for place, cell in self.placed():
            if cell.differs:
                places.setdefault(cell.note, []).append(place)
        return tuple(Footnote(i, tuple(where), note) for i, (note, where) in enumerate(places.items(), start=1))

    def footnote_number(self, cell: Cell) -> int | None:
        """Return the number of a cell's footnote; None if it does not differ from the print."""
        numbers = {footnote.text: footnote.number for footnote in self.footnotes()}
        return numbers[cell.note] if cell.differs else None

    def summary(self, all_printed: bool = True) -> str:
        """Say how many of our values agree with the printed ones, and which do not; `all_printed` values are shown."""
        printed = [(place, cell) for place, cell in self.placed() if cell.published is not None]
        if self.measured:
            return "Our runs; the paper's values are in brackets." if printed else ""
        wrong = [place for place, cell in printed if cell.differs]
        said = f"{len(printed) - len(wrong)} of {len(printed)} values agree with the printed ones"
        said += " (in brackets)" if all_printed else ""
        differing = "differ" if all_printed else "differ (printed value in brackets)"
        return f"{said}; these {differing}: {', '.join(wrong)}." if wrong else f"{said}."


def quantity(value: float, unit: str, base: int = 1000) -> str:
    """Return a number with a prefix.

    >>> quantity(1536, "B", base=1024), quantity(2.5e9, "FLOP"), quantity(12, "B", base=1024)
    ('1.50 KiB', '2.50 GFLOP', '12 B')
    >>> quantity(1010 * 2**20, "B", base=1024), quantity(99.96e6, "FLOP"), quantity(999.6e6, "FLOP")
    ('1010 MiB', '100 MFLOP', '1.00 GFLOP')
    """
    prefixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"] if base == 1024 else ["", "k", "M", "G", "T", "P", "E"]
    i = 0
    while value >= base - 0.5 and i < len(prefixes) - 1:  # 0.5: a value that rounds up to the base gets the next prefix
        value, i = value / base, i + 1
    decimals = 0 if i == 0 or value >= 99.95 else 1 if value >= 9.995 else 2  # three digits, or all before the point
    return f"{value:.{decimals}f} {prefixes[i]}{unit}"


def one_line(text: str) -> str:
    r"""Return the text without line breaks and other control characters, which would end a row.

    >>> one_line("two\nlines")
    'two lines'
    """
    return re.sub(r"[\x00-\x1f\x7f\u2028\u2029]+", " ", text)


def markdown(table: Table) -> str:
    """Write GitHub Markdown: our values with the printed ones beside them, and a footnote for every difference."""
    rows = [[markdown_text(column) for column in table.columns], ["---"] * len(table.columns)]
    rows += [[_markdown_cell(table, cell) for cell in row] for row in table.rows]
    lines = [f"**{markdown_text(table.title)}**", "", *(f"| {' | '.join(row)} |" for row in rows)]
    lines += [line for said in (table.summary(), *table.remarks) if said for line in ("", markdown_text(said))]
    for note in table.footnotes():
        said = f"{', '.join(note.places)}: {note.text}"
        lines += ["", f"[^{note.number}]: {markdown_text(said)}"]
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    r"""Escape a text for Markdown, also inside a table.

    >>> markdown_text("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    marked = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markdown_cell(table: Table, cell: Cell) -> str:
    ours = markdown_text(cell.ours)
    ours = f"**{ours}**" if cell.differs or cell.strong else ours
    if cell.published is None:
        return ours
    printed = markdown_text(cell.published)
    mark = f"[^{table.footnote_number(cell)}]" if cell.differs else ""
    return f"{ours}<br>({printed}){mark}" if table.stacked else f"{ours} ({printed}){mark}"


def latex(table: Table) -> str:
    """Write a LaTeX table that needs no package; the summary, the remarks and the footnotes go into the caption."""
    said = [line for line in (f"{table.title}.", table.summary(), *table.remarks) if line]
    said += [f"[{note.number}] {', '.join(note.places)}: {note.text}" for note in table.footnotes()]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{tex(' '.join(said))}}}", rf"\label{{tab:{table.name}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * table.labels}{'r' * (len(table.columns) - table.labels)}}}", r"\hline"]
    lines += [" & ".join(tex(column) for column in table.columns) + r" \\", r"\hline"]
    previous = ""
    for row in table.rows:
        if table.labels > 1 and previous not in ("", row[0].ours):
            lines.append(r"\hline")
        previous = row[0].ours
        line = " & ".join(_tex_cell(table, cell) for cell in row) + r" \\"
        lines.append(f"{{}}{line}" if line.startswith(("[", "*")) else line)  # else the \\ before it would consume them
    return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table}"]) + "\n"


def tex(text: str) -> str:
    r"""Escape a text for LaTeX.

    >>> tex("5% of x_t ± 1")
    '5\\% of x\\_t $\\pm$ 1'
    """
    return "".join(TEX.get(character, character) for character in one_line(text))


def _tex_cell(table: Table, cell: Cell) -> str:
    ours = rf"\textbf{{{tex(cell.ours)}}}" if cell.strong or cell.differs else tex(cell.ours)
    mark = f" [{table.footnote_number(cell)}]" if cell.differs else ""
    return ours if cell.published is None else f"{ours} ({tex(cell.published)}){mark}"


def to_csv(table: Table) -> str:
    """Write CSV: a column that the paper has is followed by its `(printed)` values; the last column has the notes."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    printed = [any(row[i].published is not None for row in table.rows) for i in range(len(table.columns))]
    header = tuple(Cell(column, f"{column} (printed)") for column in table.columns)
    for row in (header, *table.rows):
        notes = ["Notes"] if row is header else dict.fromkeys(cell.note for cell in row if cell.differs)
        values: list[str] = []
        for cell, twice in zip(row, printed, strict=True):
            values += [cell.ours, cell.published or ""] if twice else [cell.ours]
        writer.writerow([*values, " ".join(notes)])
    return text.getvalue()


def numbers_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of plain values, with the union of their keys as header; missing values and None stay empty."""
    text = StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
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


RENDERERS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "csv": to_csv, "json": to_json, "latex": latex}
FILES: dict[str, Callable[[Table], str]] = {  # by file suffix
    "md": markdown,
    "csv": lambda table: f"# {one_line(table.title)}\n{to_csv(table)}",
    "tex": latex,
    "json": to_json,
}
