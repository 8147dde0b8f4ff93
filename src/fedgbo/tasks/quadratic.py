"""A synthetic task whose constants are known: quadratics with a minimiser, and a curvature, of each client's own.

Client i's sample j has the loss ½ (x - b_ij)ᵀ A_i (x - b_ij). The A_i are diagonal, with the same eigenvalues for all
clients but in an order of each one's own, so that the mean of the clients' minimisers is not the minimiser of the mean:
clients that take many steps drift. On it the paper's theorem can be held against what is measured.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core import ConfigError, not_negative, stream, whole
from fedgbo.data.federated import FederatedData
from fedgbo.tasks.task import Task

Floats = np.ndarray[Any, np.dtype[np.float64]]

CLIENTS_PER_ROUND = 5
BATCH_SIZE = 5
LARGEST = 1.0  # eigenvalue: L


def quadratic(
    *,
    dimension: int = 10,
    clients: int = 20,
    samples: int = 20,
    heterogeneity: float = 1.0,
    noise: float = 1.0,
    condition: float = 10.0,
    seed: int = 0,
) -> Task:
    """Synthetic quadratic losses on 20 clients with different minimisers; the constants of the theory are known."""
    return Quadratics.draw(dimension, clients, samples, heterogeneity, noise, condition, seed).task()


class Scaled(nn.Module):
    """One parameter vector x, from 0; for each sample, a vector s of scales, it returns s · x, elementwise.

    With targets s · b and `half_squares` as the loss, a sample's loss is ½ (x - b)ᵀ diag(s²) (x - b).
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))

    def forward(self, scales: Tensor) -> Tensor:
        """Return (B, d) outputs for (B, d) scales."""
        return scales * self.x


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ½ ‖outputs - targets‖², mean over the batch."""
    return (outputs - targets).square().sum(dim=1).mean() / 2


@dataclass(frozen=True, eq=False)
class Quadratics:
    """The numbers behind the task, and the constants of the paper's Section 4 that follow from them.

    Constants that depend on x hold in the smallest box that has x_0 = 0 and every b_ij in it. Gradient steps with
    η L <= 1 never leave that box: in each coordinate a step goes a part of the way to the mean of some b_ij. Momentum
    may leave it in principle, so that whoever relies on the box checks the gradients that were really seen.
    """

    curvatures: Floats  # (clients, d): the diagonals of A_i
    minimisers: Floats  # (clients, samples, d): b_ij

    @classmethod
    def draw(
        cls, dimension: int, clients: int, samples: int, heterogeneity: float, noise: float, condition: float, seed: int
    ) -> "Quadratics":
        """Draw clients' minimisers about a point at distance 1 of x_0, at a distance of about `heterogeneity`, and
        samples' minimisers about their client's at a distance of about `noise`.

        Eigenvalues go from 1 / `condition` to 1, evenly in their logarithm.
        """
        for name, count in (("dimension", dimension), ("clients", clients), ("samples", samples)):
            whole(name, count)
        not_negative("heterogeneity", heterogeneity)
        not_negative("noise", noise)
        if isinstance(condition, bool) or not isinstance(condition, int | float) or not 1 <= condition < np.inf:
            raise ConfigError(f"condition must be a finite number of at least 1, not {condition!r}; 10 is the default")
        rng, scale = stream(seed, "quadratic"), 1 / np.sqrt(dimension)
        eigenvalues = LARGEST * np.geomspace(1 / condition, 1, dimension) if dimension > 1 else np.array([LARGEST])
        curvatures = np.stack([rng.permutation(eigenvalues) for _ in range(clients)])
        centre = np.full(dimension, scale)
        centres = centre + heterogeneity * scale * rng.normal(size=(clients, 1, dimension))
        return cls(curvatures, centres + noise * scale * rng.normal(size=(clients, samples, dimension)))

    def task(self) -> Task:
        """Return the task; its test loss is F itself, the mean over all clients and samples."""
        scales = np.repeat(np.sqrt(self.curvatures)[:, None], self.minimisers.shape[1], axis=1)
        targets = scales * self.minimisers
        clients, samples, dimension = self.minimisers.shape
        return Task(
            name="quadratic",
            data=FederatedData.from_clients(
                train=list(zip(scales, targets, strict=True)), test=(np.concatenate(scales), np.concatenate(targets))
            ),
            model=lambda: Scaled(dimension),
            clients_per_round=min(CLIENTS_PER_ROUND, clients),
            batch_size=min(BATCH_SIZE, samples),
            loss=half_squares,
        )

    @property
    def smoothness(self) -> float:
        """L: every sample's gradient is A_i (x - b_ij)."""
        return float(self.curvatures.max())

    @property
    def heterogeneity(self) -> float:
        """G: the largest root mean square of ‖∇f_i(x) - ∇F(x)‖ over clients, for x in the box.

        The square is a sum over coordinates, each of them convex in its own x: the largest is at an end of the box.
        """
        ends = [((own - own.mean(axis=0)) ** 2).mean(axis=0) for own in map(self._client_gradients, self.box)]
        return float(np.sqrt(np.maximum(*ends).sum()))

    @property
    def largest_gradient(self) -> float:
        """R: the largest ‖∇f_i(x; ξ)‖ for x in the box and any sample."""
        reach = np.maximum(*(np.abs(end - self.minimisers) for end in self.box))  # (clients, samples, d)
        return float(np.linalg.norm(self.curvatures[:, None] * reach, axis=2).max())

    def noise(self, batch_size: int) -> float:
        """σ of a minibatch: drawn without replacement, its variance is at most a sample's divided by its size."""
        off = self.curvatures[:, None] * (self.minimisers - self.minimisers.mean(axis=1, keepdims=True))
        variance = (off**2).sum(axis=2).mean(axis=1).max()
        return float(np.sqrt(variance / batch_size))

    @property
    def gap(self) -> float:
        """F(x_0) - F*."""
        return self.value(np.zeros(self.minimisers.shape[2])) - self.value(self.optimum)

    @property
    def box(self) -> tuple[Floats, Floats]:
        """The lowest and the highest coordinates of x_0 and all b_ij."""
        flat = self.minimisers.reshape(-1, self.minimisers.shape[2])
        return np.minimum(flat.min(axis=0), 0.0), np.maximum(flat.max(axis=0), 0.0)

    @cached_property
    def optimum(self) -> Floats:
        """x*, where ∇F is 0."""
        means: Floats = (self.curvatures * self.minimisers.mean(axis=1)).mean(axis=0) / self.curvatures.mean(axis=0)
        return means

    def gradient(self, x: Floats) -> Floats:
        """∇F(x)."""
        mean: Floats = self._client_gradients(x).mean(axis=0)
        return mean

    def value(self, x: Floats) -> float:
        """F(x)."""
        return float((self.curvatures[:, None] * (x - self.minimisers) ** 2).sum(axis=2).mean() / 2)

    def _client_gradients(self, x: Floats) -> Floats:
        gradients: Floats = self.curvatures * (x - self.minimisers.mean(axis=1))  # (clients, d)
        return gradients
