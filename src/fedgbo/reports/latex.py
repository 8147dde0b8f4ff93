"""A table as LaTeX, without any package."""

from fedgbo.reports.table import Cell, Table, one_line

TEX = {character: "\\" + character for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$", "‖": r"$\|$", "±": r"$\pm$",
    "·": r"$\cdot$", "×": r"$\times$", "∇": r"$\nabla$",
    "√": r"$\surd$", "²": "$^2$", "₁": "$_1$", "₂": "$_2$", "β": r"$\beta$", "η": r"$\eta$", "ε": r"$\epsilon$",
}  # fmt: skip


def latex(table: Table) -> str:
    """Write a LaTeX table that needs no package; what the terminal has below it goes into the caption."""
    said = " ".join(line for line in (f"{table.title}.", table.summary(), *table.remarks) if line)
    notes = [f"[{note.number}] {', '.join(note.places)}: {note.text}" for note in table.footnotes()]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(' '.join([said, *notes]))}}}",
        r"\label{tab:" + table.name + "}",
    ]
    lines += [rf"\begin{{tabular}}{{{'l' * table.labels}{'r' * (len(table.columns) - table.labels)}}}", r"\hline"]
    lines += [" & ".join(tex(column) for column in table.columns) + r" \\", r"\hline"]
    previous = ""
    for row in table.rows:
        if table.labels > 1 and previous not in ("", row[0].ours):
            lines.append(r"\hline")
        previous = row[0].ours
        line = " & ".join(_tex_cell(table, cell) for cell in row) + r" \\"
        lines.append(f"{{}}{line}" if line.startswith(("[", "*")) else line)  # the \\ before would take it for its own
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
