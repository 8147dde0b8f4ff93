"""Formulas as our docstrings write them, as numbers: so that text can be held against code, and print against text.

sum:     product (+ or - product)*
product: factor (factor or / factor)*, from left to right; two factors side by side are multiplied
factor:  √factor, or a number, a name or (sum), perhaps squared
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgbo.core.errors import ConfigError
from fedgbo.core.random import stream

NAMES = ("x_{t+1}", "x_t", "β₁", "β₂", "β", "η", "ε", "K", "g", "m", "v")
_TOKEN = re.compile(rf"\s*({'|'.join(re.escape(name) for name in NAMES)}|\d+|[-+/()√²])")


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a formula, where the names stand for numbers or arrays.

    >>> evaluate("η (β m + (1 - β) g)", {"η": 2.0, "β": 0.5, "m": 4.0, "g": 6.0})
    10.0
    """
    tokens, place = [], 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ConfigError(f"'{text}' is no formula: cannot read '{text[place:].strip()}'")
        tokens.append(match[1])
        place = match.end()
    reader = _Reader(text, tokens, values)
    value = reader.sum()
    if reader.next is not None:
        raise ConfigError(f"'{text}' is no formula: '{reader.next}' is out of place")
    return value


def assignments(text: str) -> dict[str, str]:
    """Split 'm <- ..., v <- ...'; a formula that assigns nothing goes by the name ''.

    >>> assignments("m <- β m, v <- g²")
    {'m': 'β m', 'v': 'g²'}
    """
    if "<-" not in text:
        return {"": text}
    return {name.strip(): value.strip() for name, _, value in (part.partition("<-") for part in text.split(","))}


def same(one: str, other: str) -> bool:
    """Return whether two formulas mean the same, by their values at a hundred random points.

    >>> same("η g / (√v + ε)", "g η / (ε + √v)"), same("η g", "η g²")
    (True, False)
    """
    points = {name: stream(0, "formula", i).uniform(0.1, 0.9, size=100) for i, name in enumerate(NAMES)}
    mine, theirs = assignments(one), assignments(other)
    return mine.keys() == theirs.keys() and all(
        np.allclose(evaluate(mine[name], points), evaluate(theirs[name], points), rtol=1e-9) for name in mine
    )


class _Reader:
    """Reads from left to right; `next` is the token to come."""

    def __init__(self, text: str, tokens: list[str], values: Mapping[str, Any]) -> None:
        self._text, self._tokens, self._values = text, iter(tokens), values
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
                raise ConfigError(f"'{self._text}' is no formula: a bracket is not closed")
        elif token is not None and token in self._values:
            value = self._values[token]
        elif token is not None and token.isdecimal():
            value = float(token)
        else:
            place = f"where '{token}' is" if token else "at its end"
            raise ConfigError(f"'{self._text}' is no formula: a number or a known name is missing {place}")
        if self.next == "²":
            self._take()
            value = value**2
        return value

    def _take(self) -> str | None:
        token, self.next = self.next, next(self._tokens, None)
        return token
