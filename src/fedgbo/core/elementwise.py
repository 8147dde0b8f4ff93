"""Whether the server's step treats every number by itself, so that it may be taken piece by piece."""

from dataclasses import fields

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.optimiser import Optimiser

FORMULAS = ("update", "track", "invert", "learn", "step")


def is_elementwise(algorithm: FederatedAlgorithm) -> bool:
    """Return whether the algorithm's `server_update`, and all of its optimisers, say so.

    A class speaks for the formulas that it wrote itself: a subclass with a formula of its own must say it again.
    """
    parts = [getattr(algorithm, field.name) for field in fields(algorithm)]
    optimisers = [part for part in parts if isinstance(part, Optimiser)]
    return _says(algorithm, "server_update") and all(_says(optimiser, *FORMULAS) for optimiser in optimisers)


def _says(thing: object, *formulas: str) -> bool:
    writer = next(kind for kind in type(thing).__mro__ if any(formula in vars(kind) for formula in formulas))
    return vars(writer).get("elementwise") is True
