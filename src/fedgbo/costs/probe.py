"""What an algorithm asks of a client, found by running it once on a model of a few numbers.

Nothing is written down per algorithm: what goes down and up, what the client holds, how many gradients it takes and how
many operations it spends on each parameter are read off `broadcast` and `client_update` themselves, so they hold for an
algorithm or an optimiser of the user's own too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.checks import whole
from fedgbo.core.client import Client
from fedgbo.core.objective import Term
from fedgbo.core.schedule import at_round

LENGTH = 5  # of the probing vectors: any length will do, since everything is counted per parameter


@dataclass(frozen=True)
class Probe:
    """One client in one round. Vectors are by name (`params`, `stats.m`, ...) and each as long as the model."""

    down: tuple[str, ...]
    up: tuple[str, ...]
    memory: tuple[str, ...]  # what the client holds besides the gradient at hand and the model's activations
    steps: int  # K
    minibatches: int  # gradients of one minibatch each
    full_batches: int  # gradients of all of the client's samples
    operations: int  # elementwise operations per parameter in the whole round, counted as they are executed


def probe(algorithm: FederatedAlgorithm, steps: int) -> Probe:
    """Run one client for `steps` local steps; schedules take their first value."""
    whole("steps", steps)
    algorithm = at_round(algorithm, 0)
    server = algorithm.init(torch.ones(LENGTH))
    down = algorithm.broadcast(server)
    client = _ProbedClient(steps, algorithm.terms, down.params)
    with _Operations() as operations:
        up = algorithm.client_update(down, client)
    sent = (tuple(down.tensors()), tuple(up.tensors()))
    return Probe(
        down=sent[0],
        up=sent[1],
        memory=_held(*sent, pulled=any(_needs_start(term) for term in algorithm.terms)),
        steps=steps,
        minibatches=client.minibatches,
        full_batches=client.full_batches,
        operations=operations.count,
    )


def _held(down: Sequence[str], up: Sequence[str], *, pulled: bool) -> tuple[str, ...]:
    """Name what a client holds, as in the paper's Table 1.

    The local model and statistics that move take the place of those that came down under the same name. The start x_t
    is kept where a term pulls towards it, but not for the difference that goes up: a device can send y_K as well, since
    the mean of differences is the difference of the means.
    """
    return (*dict.fromkeys((*down, *up)), *(("start",) if pulled else ()))


def _needs_start(term: Term) -> bool:
    """Return whether the term's gradient depends on the model that the round began with: autograd knows."""
    start = torch.ones(LENGTH, requires_grad=True)
    pull = term.gradient(torch.ones(LENGTH), start)
    return pull is not None and pull.requires_grad


class _ProbedClient(Client):
    """Answers with gradients of ones, and counts the questions."""

    def __init__(self, steps: int, terms: Sequence[Term], start: Tensor) -> None:
        self.steps = steps
        self.minibatches = self.full_batches = 0
        self._terms, self._start, self._gradient = terms, start, torch.ones_like(start)

    def gradient(self, params: Tensor) -> Tensor:
        """Return ones, plus what the terms add."""
        self.minibatches += 1
        return self._with_terms(params)

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return ones, plus what the terms add."""
        self.full_batches += 1
        return self._with_terms(params)

    def _with_terms(self, params: Tensor) -> Tensor:
        gradient = self._gradient
        for term in self._terms:
            pull = term.gradient(params, self._start)
            gradient = gradient if pull is None else gradient + pull
        return gradient


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts arithmetic whose result is as long as the model; making or copying a vector is not arithmetic."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        arithmetic = torch.Tag.pointwise in func.tags and func.overloadpacket is not torch.ops.aten.clone
        if arithmetic and isinstance(result, Tensor) and result.numel() == LENGTH:
            self.count += 1
        return result
