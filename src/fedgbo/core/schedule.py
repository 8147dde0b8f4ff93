"""Hyperparameters that change over rounds (the paper, Section 4: decay lr or K to trade speed for final error).

Any number of an optimiser, an algorithm or an objective term may be a Schedule; `at_round` puts the numbers in. The
checks of hyperparameters at the end accept both.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from fedgbo.core.errors import ConfigError

T = TypeVar("T")
Number = Any  # a float, or a Schedule of floats: by the time a formula runs, `at_round` has made it a float


@dataclass(frozen=True)
class Schedule(ABC):
    """A number for each round t = 0, 1, 2, ..., starting from `initial`."""

    initial: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
                raise ConfigError(
                    f"{type(self).__name__.lower()} schedule: {field.name} must be above 0, not {value!r}"
                )

    @abstractmethod
    def __call__(self, t: int) -> float:
        """Return the value in round t."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value in every round."""

    def __call__(self, t: int) -> float:
        return self.initial


@dataclass(frozen=True)
class Step(Schedule):
    """initial · factor^⌊t / every⌋.

    >>> [Step(1.0, every=2, factor=0.5)(t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    factor: float = 0.1

    def __call__(self, t: int) -> float:
        return self.initial * self.factor ** (t // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """initial · factor^t."""

    factor: float

    def __call__(self, t: int) -> float:
        return self.initial * self.factor**t


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """initial / √(t + 1), the rate of the paper's Corollary 1."""

    def __call__(self, t: int) -> float:
        return self.initial / math.sqrt(t + 1)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "inversesqrt": InverseSqrt,
    "step": Step,
}


def at_round(thing: T, t: int) -> T:
    """Return `thing` with every schedule inside it replaced by its value in round t.

    >>> at_round((Step(1.0, every=2, factor=0.5), 3), t=2)
    (0.5, 3)
    """
    if isinstance(thing, Schedule):
        return thing(t)  # type: ignore[return-value]
    return _changed(thing, lambda part: at_round(part, t))


def plain(thing: Any) -> Any:
    """Return `thing` with every number of numpy's inside it as Python's own, whose arithmetic is in full precision.

    >>> plain((Step(np.float16(1.0), every=np.int8(2)), 3))
    (Step(initial=1.0, every=2, factor=0.1), 3)
    """
    if isinstance(thing, np.generic):
        return thing.item()
    return _changed(thing, plain)


def _changed(thing: T, change: Callable[[Any], Any]) -> T:
    """Return a list, tuple or dataclass with `change` applied to its parts; the same object where nothing changes."""
    if isinstance(thing, tuple | list):
        parts = [change(part) for part in thing]
        same = all(now is part for now, part in zip(parts, thing, strict=True))
        return thing if same else type(thing)(parts)
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    changed: dict[str, Any] = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if (now := change(value)) is not value:
            changed[field.name] = now
    return replace(thing, **changed) if changed else thing


def positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above 0, or a schedule of such numbers."""
    if not isinstance(value, Schedule) and not (_number(value) and value > 0):  # type: ignore[operator]
        raise ConfigError(f"{name} must be a finite number above 0, not {value!r}")


def not_negative(name: str, value: object) -> None:
    """Raise unless `value` is a finite number from 0 on, or a schedule of such numbers."""
    if not isinstance(value, Schedule) and not (_number(value) and value >= 0):  # type: ignore[operator]
        raise ConfigError(f"{name} must be a finite number of at least 0, not {value!r}")


def decay(name: str, value: object) -> None:
    """Raise unless `value` is a decay rate: at least 0 and below 1."""
    if not isinstance(value, Schedule) and not (_number(value) and 0 <= value < 1):  # type: ignore[operator]
        raise ConfigError(f"{name} must be at least 0 and below 1, not {value!r}; 0.9 is a good first try")


def share(name: str, value: object) -> None:
    """Raise unless `value` is above 0 and at most 1."""
    if not isinstance(value, Schedule) and not (_number(value) and 0 < value <= 1):  # type: ignore[operator]
        raise ConfigError(f"{name} must be above 0 and at most 1, not {value!r}; 0.1 is a good first try")


def whole(name: str, value: object, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
