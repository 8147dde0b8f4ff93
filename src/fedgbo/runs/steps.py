"""K, the number of local steps: the same for all, one for each client, or a function of the round."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np

from fedgbo.core import ConfigError, Schedule, whole

Steps = np.ndarray[Any, np.dtype[np.integer[Any]]]
LocalSteps = int | Sequence[int] | Schedule | Callable[..., int]
"""A number; a list with one for each client; a schedule over rounds; or a function of (round, client), or of one of
them: arguments called `round` and `client` get these, a single one of another name gets the client."""


def listed(local_steps: LocalSteps | Steps) -> LocalSteps:
    """Return an array as a list, or as a number if it is one, and anything else as it is."""
    given: LocalSteps = local_steps.tolist() if isinstance(local_steps, np.ndarray) else local_steps
    return given


def check_local_steps(local_steps: LocalSteps, clients: int) -> None:
    """Raise on what can be seen to be wrong before the first round."""
    if isinstance(local_steps, Sequence) and not isinstance(local_steps, str):
        if len(local_steps) != clients:
            raise ConfigError(f"local_steps has {len(local_steps)} numbers, but there are {clients} clients")
        for client, k in enumerate(local_steps):
            whole(f"local_steps[{client}]", k)
    elif not callable(local_steps):
        whole("local_steps", local_steps)


def plain_steps(local_steps: LocalSteps) -> LocalSteps:
    """Return the same with Python's own numbers in the place of numpy's."""
    if isinstance(local_steps, np.integer):
        return int(local_steps)
    return [int(k) for k in local_steps] if isinstance(local_steps, Sequence) else local_steps


def steps_of(local_steps: LocalSteps, cohort: Sequence[int], t: int) -> list[int]:
    """Return K for each client of round t's cohort.

    >>> steps_of([1, 2, 3], cohort=[0, 2], t=0)
    [1, 3]
    """
    if isinstance(local_steps, int):
        return [local_steps] * len(cohort)
    if isinstance(local_steps, Schedule):
        return [max(1, round(local_steps(t)))] * len(cohort)
    if callable(local_steps):
        names = list(signature(local_steps).parameters)
        if set(names) <= {"round", "client"}:
            steps = [local_steps(**{name: {"round": t, "client": client}[name] for name in names}) for client in cohort]
        else:
            steps = [local_steps(client) if len(names) == 1 else local_steps(t, client) for client in cohort]
        for client, k in zip(cohort, steps, strict=True):
            whole(f"local_steps({t}, {client})", k)
        return [int(k) for k in steps]
    return [local_steps[client] for client in cohort]
