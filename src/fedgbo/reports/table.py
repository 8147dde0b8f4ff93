"""A table: our values and, where it is one of the paper's, the printed ones beside them and why the two differ."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

UNEXPLAINED = "differs from the print; no reason is known"


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
    stacked: bool = False  # long cells: the printed value goes below ours, not beside it
    measured: bool = False  # ours come from runs: printed values stand beside them, and need not agree

    def placed(self) -> Iterator[tuple[str, Cell]]:
        """Yield every cell with its place, such as 'Sent140 Mimelite RMSProp'."""
        for row in self.rows:
            label = " ".join(cell.ours for cell in row[: self.labels])
            for column, cell in zip(self.columns, row, strict=True):
                yield f"{label} {column}", cell

    def footnotes(self) -> tuple[Footnote, ...]:
        """Return the differences, those with the same reason together."""
        places: dict[str, list[str]] = {}
        for place, cell in self.placed():
            if cell.differs:
                places.setdefault(cell.note, []).append(place)
        return tuple(Footnote(i, tuple(where), note) for i, (note, where) in enumerate(places.items(), start=1))

    def footnote_number(self, cell: Cell) -> int | None:
        """Return which footnote a cell points to, if it differs from the print."""
        numbers = {footnote.text: footnote.number for footnote in self.footnotes()}
        return numbers[cell.note] if cell.differs else None

    def summary(self) -> str:
        """Say how many of our values agree with the print, and which do not."""
        if self.measured:
            printed_too = any(cell.published is not None for _, cell in self.placed())
            return "Our runs; the paper's values are in brackets." if printed_too else ""
        printed = [(place, cell) for place, cell in self.placed() if cell.published is not None]
        wrong = [place for place, cell in printed if cell.differs]
        where = "printed ones" if self.stacked else "printed ones (in brackets)"
        said = f"{len(printed) - len(wrong)} of {len(printed)} values agree with the {where}"
        return f"{said}; these differ: {', '.join(wrong)}." if wrong else f"{said}."


def one_line(text: str) -> str:
    r"""Return the text without line breaks and other control characters, which would end a row.

    >>> one_line("two\nlines")
    'two lines'
    """
    return re.sub(r"[\x00-\x1f\x7f\u2028\u2029]+", " ", text)
