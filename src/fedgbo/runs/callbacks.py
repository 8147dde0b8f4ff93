"""Callbacks: functions of the user's that a run calls after every round, and how they stop it."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from fedgbo.core import ConfigError, StopRun
from fedgbo.runs.round import Progress

Callback = Callable[[Progress], None]


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks, a single one as a tuple too; raise on one that cannot be called."""
    if callable(callbacks):
        return (callbacks,)
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks must be a list of functions, e.g. callbacks=[print], not {callbacks!r}")
    found = tuple(callbacks)
    for callback in found:
        if not callable(callback):
            raise ConfigError(f"callbacks must be functions of a fedgbo.Progress, and {callback!r} cannot be called")
    return found


class Callbacks:
    """Calls the callbacks of one run."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._warned: set[int] = set()  # positions of callbacks whose return value was warned about

    def __call__(self, progress: Progress) -> bool:
        """Call all of them, in order; return whether one of them stopped the run."""
        stop = False
        for i, callback in enumerate(self._callbacks):
            try:
                returned: object = callback(progress)
            except StopRun:
                stop = True
                continue
            if returned is not None and i not in self._warned:
                self._warned.add(i)
                warnings.warn(_ignored(callback, returned), stacklevel=2)
        return stop


def _ignored(callback: Callback, returned: object) -> str:
    name = getattr(callback, "__qualname__", type(callback).__name__)
    return (
        f"the callback {name} returned {returned!r:.60}, which is ignored; "
        "to stop a run, call progress.stop() or raise fedgbo.StopRun, and otherwise return nothing"
    )
