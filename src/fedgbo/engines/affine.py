"""An optimiser's step with fixed statistics, as two vectors: y <- y - (offset + scale · g)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedgbo.core.linear import factors_of, is_settled
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.engines.fixed import FixedStep

TOLERANCE = 1e-9  # of the numbers that go into a step, in float64


@dataclass(frozen=True, eq=False)
class Affine:
    """A step that every client takes alike, whatever its gradient: the same for a round's clients and local steps."""

    offset: Tensor  # (P,)
    scale: Tensor  # (P,)


def affine(optimiser: Optimiser, params: Tensor, stats: Stats, *, check: bool = True) -> Affine | None:
    """Take the two vectors from the optimiser, or read them off `update` at g = 0 and g = 1; None if it is not so.

    All is in float64. The check costs more than the rest. It is about the formula, so once for each type of optimiser
    is enough.

    >>> from fedgbo.optimisers import SGDm
    >>> step = affine(SGDm(lr=0.5, beta=0.5), torch.zeros(1).double(), {"m": torch.ones(1).double()})
    >>> step.offset.item(), step.scale.item()
    (0.25, 0.25)
    """
    told = FixedStep.of(optimiser, stats)
    if told is not None:
        offset = torch.zeros_like(params) if told.offset is None else told.offset
        scale = told.scale if isinstance(told.scale, Tensor) else full(len(params), told.scale)
        step = Affine(offset, scale)
        return step if not check or _holds(step, optimiser, stats) else None
    zero = torch.zeros_like(params)
    still = optimiser.update(zero, stats, zero)
    step = Affine(offset=-still, scale=still - optimiser.update(zero, stats, torch.ones_like(params)))
    return step if not check or _holds(step, optimiser, stats) else None


def simple(optimiser: Optimiser, names: Sequence[str]) -> tuple[float, float] | None:
    """Return two numbers if those are all there is to the step: the offset over the only statistic, and the scale.

    That the offset is a multiple of the statistic, `is_multiple` must have found out, once for each type of optimiser.

    >>> from fedgbo.optimisers import SGDm
    >>> simple(SGDm(lr=0.5, beta=0.5), ["m"])
    (0.25, 0.25)
    """
    told = FixedStep.of(optimiser, {name: torch.ones(1, dtype=torch.float64) for name in names})
    if told is None or isinstance(told.scale, Tensor) or len(names) != (told.offset is not None):
        return None
    return 0.0 if told.offset is None else float(told.offset), told.scale


def is_multiple(optimiser: Optimiser, names: Sequence[str], length: int) -> bool:
    """Return whether the offset is, at any values of the statistics, a sum of multiples of them."""

    def offset(vectors: Sequence[Tensor]) -> list[Tensor]:
        told = FixedStep.of(optimiser, dict(zip(names, vectors, strict=True)))
        return [] if told is None or told.offset is None else [told.offset]

    return is_settled(optimiser) and (not names or factors_of(offset, len(names), length) is not None)


def _holds(step: Affine, optimiser: Optimiser, stats: Stats) -> bool:
    """Return whether `update` does the same as the two vectors at a point of random numbers of all magnitudes.

    That finds steps which depend on the weights (decay), bound the gradient, or mix the weights.
    """
    params, grad = _point(step.scale.numel())
    expected = params - (step.offset + step.scale * grad)
    error = (optimiser.update(params, stats, grad) - expected).abs_()
    size = params.abs() + step.offset.abs() + (step.scale * grad).abs_()
    return bool((error <= TOLERANCE * size).all())


@lru_cache(maxsize=4)
def full(length: int, value: float) -> Tensor:
    """Return a vector with the same number everywhere, which nobody is to change."""
    return torch.full((length,), value, dtype=torch.float64)


@lru_cache(maxsize=4)
def _point(length: int) -> tuple[Tensor, Tensor]:
    """Return weights, and a gradient with entries from 1e-4 to 1e4; the same ones each time."""
    random = torch.Generator().manual_seed(0)
    normal = torch.randn(2, length, generator=random, dtype=torch.float64)
    magnitude = 10 ** (8 * torch.rand(length, generator=random, dtype=torch.float64) - 4)
    return normal[0], normal[1] * magnitude
