"""Table 2: the optimisers' formulas, read from their docstrings and compared with the printed ones by value.

sum:     product (+ or - product)*
product: factor (factor or / factor)*, from left to right; two factors side by side are multiplied
factor:  √factor, or a number, a name or (sum), optionally squared
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fedgbo.core.errors import ConfigError
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.random import stream
from fedgbo.experiments.paper.cost_tables import example_optimiser, printed_rows
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.table import UNEXPLAINED, Cell, Table

NAMES = ("x_{t+1}", "x_t", "β₁", "β₂", "β", "η", "ε", "K", "g", "m", "v")
STEPS = {"Update": "U", "Tracking": "T", "Inverse": "I"}
SQUARED = (
    "the paper prints g where it must be g²: v is a mean of squared gradients, and with g it could become negative, so "
    "that the update would have no root. The published experiments used g²."
)


def table2() -> Table:
    """Update, tracking and inverse steps of the paper's optimisers."""
    lines = []
    for row in printed_rows("table2"):
        name = row["Optimiser"].lower()
        ours = steps(OPTIMISERS[name])
        statistics = ", ".join(example_optimiser(name).init(torch.ones(1)))
        cells = [_compared(column, ours[letter], row[column]) for column, letter in STEPS.items()]
        lines.append((Cell(row["Optimiser"]), Cell.compared(statistics, row["Statistics"]), *cells))
    return Table(
        name="table2",
        title="Table 2: update (U), tracking (T) and inverse (I) steps",
        columns=("Optimiser", "Statistics", *STEPS),
        rows=tuple(lines),
        remarks=(
            "η is the learning rate, β, β₁ and β₂ decay rates, g a gradient, ε a constant for stability, K the number "
            "of local steps, x_t and x_{t+1} the global model before and after a round.",
            "Ours are the optimisers' docstrings. Formulas agree if they have the same values, however they are "
            "written.",
        ),
        stacked=True,
    )


def steps(optimiser: type[Optimiser]) -> dict[str, str]:
    """Return the lines U, T and I of an optimiser's docstring.

    >>> steps(OPTIMISERS["sgdm"])["U"]
    'η (β m + (1 - β) g)'
    """
    found = dict(re.findall(r"^([UTI]): (.+)$", inspect.cleandoc(optimiser.__doc__ or ""), flags=re.MULTILINE))
    if missing := [letter for letter in STEPS.values() if letter not in found]:
        raise ConfigError(f"{optimiser.__name__}'s docstring has no line '{missing[0]}: ...'")
    return found


def _compared(column: str, ours: str, published: str) -> Cell:
    if same(ours, published):
        return Cell(ours, published)
    squared = column == "Tracking" and ours.replace("g²", "g") == published
    return Cell(ours, published, SQUARED if squared else UNEXPLAINED, differs=True)


def same(one: str, other: str) -> bool:
    """Return whether two formulas mean the same, by their values at a hundred random points.

    >>> same("η g / (√v + ε)", "g η / (ε + √v)"), same("η g", "η g²")
    (True, False)
    """
    points = {name: stream(0, "formula", i).uniform(0.1, 0.9, size=100) for i, name in enumerate(NAMES)}
    ours, theirs = assignments(one), assignments(other)
    return ours.keys() == theirs.keys() and all(
        np.allclose(evaluate(ours[name], points), evaluate(theirs[name], points), rtol=1e-9) for name in ours
    )


def assignments(text: str) -> dict[str, str]:
    """Split 'm <- ..., v <- ...'; a formula that assigns nothing has the name ''.

    >>> assignments("m <- β m, v <- g²")
    {'m': 'β m', 'v': 'g²'}
    """
    if "<-" not in text:
        return {"": text}
    return {name.strip(): value.strip() for name, _, value in (part.partition("<-") for part in text.split(","))}


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a formula; its names stand for numbers or arrays.

    >>> evaluate("η (β m + (1 - β) g)", {"η": 2.0, "β": 0.5, "m": 4.0, "g": 6.0})
    10.0
    """
    parser = _Parser(text, values)
    value = parser.sum()
    if parser.next is not None:
        raise ConfigError(f"'{text}' is not a formula: '{parser.next}' is out of place")
    return value


def _tokens(text: str) -> Iterator[str]:
    token = re.compile(rf"\s*({'|'.join(re.escape(name) for name in NAMES)}|\d+|[-+/()√²])")
    place = 0
    while place < len(text.rstrip()):
        match = token.match(text, place)
        if match is None:
            raise ConfigError(f"'{text}' is not a formula: cannot read '{text[place:].strip()}'")
        yield match[1]
        place = match.end()


class _Parser:
    """Recursive descent from left to right; `next` is the next token, None at the end."""

    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        self._text, self._tokens, self._values = text, iter(list(_tokens(text))), values
        self.next = next(self._tokens, None)

    def sum(self) -> Any:
        value = self._product()
        while self.next in ("+", "-"):
            sign, term = self._take(), self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Any:
        value = self._factor()
        while self.next not in (None, "+", "-", ")"):
            if self.next == "/":
                self._take()
                value = value / self._factor()
            else:
                value = value * self._factor()
        return value

    def _factor(self) -> Any:
        token = self._take()
        if token == "√":
            return self._factor() ** 0.5
        if token == "(":
            value = self.sum()
            if self._take() != ")":
                raise ConfigError(f"'{self._text}' is not a formula: a bracket is not closed")
        elif token is not None and token in self._values:
            value = self._values[token]
        elif token is not None and token.isdecimal():
            value = float(token)
        else:
            place = f"where '{token}' is" if token else "at its end"
            raise ConfigError(f"'{self._text}' is not a formula: a number or a known name is missing {place}")
        if self.next == "²":
            self._take()
            value = value**2
        return value

    def _take(self) -> str | None:
        token, self.next = self.next, next(self._tokens, None)
        return token
