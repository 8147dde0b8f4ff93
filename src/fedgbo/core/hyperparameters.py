"""Checks of hyperparameters, shared by optimisers, algorithms and settings."""

import math
from numbers import Real

import numpy as np

from fedgbo.core.errors import ConfigError
from fedgbo.core.schedule import Schedule


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
