"""A client small enough to run an algorithm without a model: for `check`, and for what an algorithm sends and costs."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.client import Client
from fedgbo.core.objective import Term, ruled
from fedgbo.core.optimiser import Stats
from fedgbo.core.random import stream

LENGTH = 7  # of the model


class QuadraticClient(Client):
    """A client whose loss is ½ ‖y - b‖², with noise in its minibatches. Of the terms only gradient rules are applied.

    It counts the gradients and losses that it computes.
    """

    def __init__(
        self, client: int, t: int, steps: int, state: Stats, terms: Sequence[Term] = (), length: int = LENGTH
    ) -> None:
        self.id, self.samples, self.steps, self.state = client, 10 * (client + 1), steps, dict(state)
        self.minibatches = self.full_batches = self.losses = 0  # gradients and losses so far
        self._terms = terms
        self._rng, self._noise = stream(0, "client", t, client), stream(0, "noise", t, client)
        self._minimum = torch.from_numpy(stream(0, "minimum", client).normal(size=length))
        self._last = torch.zeros(length, dtype=torch.float64)

    @property
    def rng(self) -> np.random.Generator:
        return self._rng

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        return ruled(self._gradient, self._terms)(params, again)

    def full_gradient(self, params: Tensor) -> Tensor:
        return ruled(self._full_gradient, self._terms)(params, False)

    def loss(self, params: Tensor) -> float:
        self.losses += 1
        return float((params - self._minimum).square().sum() / 2)

    def _gradient(self, params: Tensor, again: bool) -> Tensor:
        self.minibatches += 1
        if not again:
            self._last = torch.from_numpy(self._noise.normal(size=len(self._last)))
        return params - self._minimum + self._last

    def _full_gradient(self, params: Tensor, again: bool) -> Tensor:
        self.full_batches += 1
        return params - self._minimum
