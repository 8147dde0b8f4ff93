"""Changes of the clients' objective that go with every algorithm and optimiser (the paper's 'combining strategies')."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgbo.core.schedule import Number, not_negative


class Term:
    """A term added to a client's loss, as a gradient in closed form or as a loss on the last hidden layer."""

    needs_hidden: ClassVar[bool] = False

    def gradient(self, params: Tensor, start: Tensor) -> Tensor | None:
        """Return the term's gradient at `params` in a round that began at `start`, or None."""
        return None

    def loss(self, hidden: Tensor) -> Tensor:
        """Return the term's loss for the (B, d) activations of the last hidden layer."""
        return hidden.new_zeros(())


@dataclass(frozen=True)
class Proximal(Term):
    """FedProx's proximal term: + μ/2 ‖y - x_t‖² (Li et al., 2020)."""

    mu: Number

    def __post_init__(self) -> None:
        not_negative("mu", self.mu)

    def gradient(self, params: Tensor, start: Tensor) -> Tensor:
        """Return μ (y - x_t)."""
        pull: Tensor = self.mu * (params - start)
        return pull


@dataclass(frozen=True)
class MaxEntropy(Term):
    """FedMAX's term: + β KL(uniform ‖ softmax(a)) for the last hidden layer's activations a, mean over the batch
    (Chen et al., 2020).
    """

    beta: Number

    needs_hidden = True

    def __post_init__(self) -> None:
        not_negative("beta", self.beta)

    def loss(self, hidden: Tensor) -> Tensor:
        """Return β Σ_j (1/d) (log 1/d - log softmax(a)_j), averaged over the batch."""
        log_p = torch.log_softmax(hidden.flatten(1), dim=1)  # (B, d)
        penalty: Tensor = self.beta * (-math.log(log_p.shape[1]) - log_p.mean())
        return penalty


GradientOf = Callable[[Tensor, bool], Tensor]
"""The gradient at some parameters, on the next minibatch or, with True, on the last one once more."""


class GradientRule(Term):
    """A term that changes the point at which gradients are computed. It applies to the loss with all other terms."""

    @abstractmethod
    def gradient_at(self, params: Tensor, again: bool, gradient: GradientOf) -> Tensor:
        """Return the gradient of the changed objective at `params`."""


@dataclass(frozen=True)
class SharpnessAware(GradientRule):
    """Sharpness-aware minimisation, max over ‖e‖ <= ρ of f(y + e), to first order (Foret et al., 2021).

    The gradient is that at y + ρ g / (‖g‖ + 1e-12) on the same minibatch, with g = ∇f(y), so a local step takes two
    gradients.
    """

    rho: Number

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)

    def gradient_at(self, params: Tensor, again: bool, gradient: GradientOf) -> Tensor:
        g = gradient(params, again)
        return gradient(params + self.rho * g / (g.norm() + 1e-12), True)


def ruled(gradient: GradientOf, terms: Sequence[Term]) -> GradientOf:
    """Return the gradient with all gradient rules among the terms, the first one innermost."""
    for term in terms:
        if isinstance(term, GradientRule):
            gradient = _apply(term, gradient)
    return gradient


def _apply(rule: GradientRule, gradient: GradientOf) -> GradientOf:
    return lambda params, again: rule.gradient_at(params, again, gradient)


TERMS: dict[str, type[Term]] = {"maxentropy": MaxEntropy, "proximal": Proximal, "sharpnessaware": SharpnessAware}
