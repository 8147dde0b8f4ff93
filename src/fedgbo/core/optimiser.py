"""Optimisers as pure functions over flat vectors (the paper's Section 3).

One definition serves clients (fixed statistics), MFL (statistics that move) and the server (AdaptiveFedOpt).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Stats = Mapping[str, Tensor]


class Optimiser(ABC):
    """An update U and a tracking rule T. A subclass is a frozen dataclass of hyperparameters and holds no tensors."""

    def init(self, params: Tensor) -> Stats:
        """Return the statistics at round 0, each as long as `params`, or one number as a vector of shape (1,)."""
        return {}

    def anchor(self, stats: Stats, start: Tensor) -> Stats:
        """Return the statistics for local steps that begin at the model `start`: by default the same.

        An optimiser whose update depends on the broadcast model, such as AdamW, adds `start` under its own name.
        `Client.descend` and FedGBO's inverse step call this. Added values are neither sent nor kept.
        """
        return stats

    @abstractmethod
    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - U(g, s), with the statistics s fixed."""

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        """Return T(g, s), the statistics after seeing the gradient."""
        return stats

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """Take one step with statistics that move: update with the old ones, then track."""
        return self.update(params, stats, grad), self.track(stats, grad)


@dataclass(frozen=True, eq=False)
class AffineStep:
    """The step y <- y - (offset + scale g): one number for each parameter, or one number for all of them."""

    offset: Tensor | float  # (P,) or a number
    scale: Tensor | float  # (P,) or a number

    def __call__(self, params: Tensor, grad: Tensor) -> Tensor:
        """Return the parameters after the step."""
        return params - (self.offset + self.scale * grad)

    def like(self, params: Tensor) -> "AffineStep":
        """Return the same step in the form that compiled code takes: contiguous vectors of the type of `params`, the
        offset 0.0 or a vector, the scale a number or a vector.
        """
        offset, scale = _like(self.offset, params), _like(self.scale, params)
        return AffineStep(torch.full_like(params, offset) if isinstance(offset, float) and offset else offset, scale)


def _like(part: Tensor | float, params: Tensor) -> Tensor | float:
    if not isinstance(part, Tensor) or part.ndim == 0:
        return float(part)
    if part.dtype == params.dtype and part.shape == params.shape and part.is_contiguous():
        return part
    return part.to(params.dtype).expand(params.shape).contiguous()


class AffineOptimiser(Optimiser):
    """An optimiser whose update is affine in the gradient while the statistics are fixed: U(g) = a + b g.

    This is enough for FedGBO: the mean gradient of K local steps that moved the model by delta = x_t - x_{t+1} is
    I(delta) = (delta / K - a) / b, also when clients take unequal numbers of steps and K is their mean.
    """

    @abstractmethod
    def affine(self, stats: Stats) -> tuple[Tensor | float, Tensor | float]:
        """Return (a, b), each a vector as long as the model or one number; b is nowhere zero."""

    def fixed(self, stats: Stats) -> AffineStep:
        """Return the local step that these statistics define."""
        return AffineStep(*self.affine(stats))

    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """Return y - (a + b g)."""
        return self.fixed(stats)(params, grad)

    def invert(self, stats: Stats, delta: Tensor, steps: float) -> Tensor:
        """Return the mean gradient of `steps` updates with fixed statistics that together moved the model by delta."""
        offset, scale = self.affine(stats)
        return (delta / steps - offset) / scale
