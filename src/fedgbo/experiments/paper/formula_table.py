"""Table 2: the optimisers' formulas, read from their docstrings and compared with the printed ones by value.

sum:     product (+ or - product)*
product: factor (factor or / factor)*, from left to right; two factors side by side are multiplied
factor:  √factor, or a number, a name or (sum), optionally squared
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedgbo.core import ConfigError, Optimiser, stream
from fedgbo.experiments.paper.cost_tables import caption, captioned, example_optimiser, printed_rows
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.table import UNEXPLAINED, Cell, Table

NAMES = ("x_{t+1}", "x_t", "β₁", "β₂", "β", "η", "ε", "K", "g", "m", "v")
END = ""  # the last token
STEPS = {"Update": "U", "Tracking": "T", "Inverse": "I"}


def table2() -> Table:
    """Update, tracking and inverse steps of the paper's optimisers."""
    lines = []
    for row in printed_rows("table2"):
        name = row["Optimiser"].lower()
        ours = steps(OPTIMISERS[name])
        statistics = ", ".join(example_optimiser(name).init(torch.ones(1)))
        cells = {"State": Cell.compared(statistics, row["Statistics"])}
        cells |= {step: _compared(step, ours[letter], row[step]) for step, letter in STEPS.items()}
        lines += [(Cell(row["Optimiser"]), Cell(step), cell) for step, cell in cells.items()]
    return captioned("table2", ("Optimiser", "Step", "Formula"), lines, labels=2, stacked=True)


def steps(optimiser: type[Optimiser]) -> dict[str, str]:
    """Return the lines U, T and I of an optimiser's docstring."""
    found = dict(re.findall(r"^([UTI]): (.+)$", inspect.cleandoc(optimiser.__doc__ or ""), flags=re.MULTILINE))
    if missing := [letter for letter in STEPS.values() if letter not in found]:
        raise ConfigError(f"{optimiser.__name__}'s docstring has no line '{missing[0]}: ...'")
    return found


def _compared(step: str, ours: str, published: str) -> Cell:
    if same(ours, published):
        return Cell(ours, published)
    squared = step == "Tracking" and ours.replace("g²", "g") == published
    return Cell(ours, published, caption("table2")["note"] if squared else UNEXPLAINED, differs=True)


def same(one: str, other: str) -> bool:
    """Return whether two formulas mean the same, by their values at a hundred random points."""
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
    try:
        tokens = [*_tokens(text), END]
        value = _sum(tokens, values)
        if tokens != [END]:
            raise ValueError(f"'{tokens[0]}' is out of place")
    except ValueError as error:
        raise ConfigError(f"'{text}' is not a formula: {error}") from error
    return value


def _tokens(text: str) -> list[str]:
    token = rf"{'|'.join(map(re.escape, NAMES))}|\d+|[-+/()√²]"
    if unread := re.sub(token, "", text).strip():
        raise ValueError(f"cannot read '{unread}'")
    return re.findall(token, text)


def _sum(tokens: list[str], values: Mapping[str, Any]) -> Any:
    """Take a sum from the front of the tokens, and return its value."""
    value = _product(tokens, values)
    while tokens[0] in ("+", "-"):
        sign, term = tokens.pop(0), _product(tokens, values)
        value = value + term if sign == "+" else value - term
    return value


def _product(tokens: list[str], values: Mapping[str, Any]) -> Any:
    value = _factor(tokens, values)
    while tokens[0] not in (END, "+", "-", ")"):
        if tokens[0] == "/":
            tokens.pop(0)
            value = value / _factor(tokens, values)
        else:
            value = value * _factor(tokens, values)
    return value


def _factor(tokens: list[str], values: Mapping[str, Any]) -> Any:
    token = tokens.pop(0)
    if token == "√":
        return _factor(tokens, values) ** 0.5
    if token == "(":
        value = _sum(tokens, values)
        if tokens.pop(0) != ")":
            raise ValueError("a bracket is not closed")
    elif token in values or token.isdecimal():
        value = values[token] if token in values else float(token)
    else:
        place = "at its end" if token == END else f"where '{token}' is"
        raise ValueError(f"a number or a known name is missing {place}")
    if tokens[0] == "²":
        tokens.pop(0)
        value = value**2
    return value
