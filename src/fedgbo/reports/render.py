"""Tables as Markdown and LaTeX for people, and as CSV for machines."""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from fedgbo.reports.tables import Grid

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "|": r"\textbar{}", '"': r"\textquotedbl{}",
}  # fmt: skip


def latex_text(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> latex_text("50% of a_b")
    '50\\% of a\\_b'
    """
    return "".join(LATEX.get(character, character) for character in one_line(text))


def markdown_text(text: str) -> str:
    r"""Return text that Markdown shows as it is, also inside a table.

    >>> markdown_text("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    marked = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def one_line(text: str) -> str:
    """Return the text without line breaks and other control characters, which would end a row."""
    return re.sub(r"[\x00-\x1f\x7f\u2028\u2029]+", " ", text)


def markdown(grid: Grid) -> str:
    """Write GitHub's Markdown."""
    ruler = ["---", *("---:" for _ in grid.columns[1:])]
    rows = [ruler, *([markdown_text(cell) for cell in row] for row in grid.rows)]
    lines = [f"**{markdown_text(grid.caption)}**", "", _row(map(markdown_text, grid.columns)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def latex(grid: Grid) -> str:
    r"""Write a table for \input; it needs \usepackage{booktabs}."""

    def line(cells: Iterable[str]) -> str:
        return " & ".join(map(latex_text, cells)) + r" \\"

    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(grid.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
            r"\toprule",
            line(grid.columns),
            r"\midrule",
            *map(line, grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of plain values, with the union of their keys as header; what a row lacks stays empty."""
    text = StringIO()
    names = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


FOR_PEOPLE: dict[str, Callable[[Grid], str]] = {"md": markdown, "tex": latex}


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
