"""Operations per parameter that a client spends besides gradients.

For the package's own classes they are the paper's counts (Table 6), which are data. For other classes the operations of
the first real client update with each number of local steps are counted as they are executed.
"""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedgbo.algorithms import (
    MFL,
    SCAFFOLD,
    AdaptiveFedOpt,
    Averaged,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedCM,
    FedGBO,
    FedMAX,
    FedProx,
    FedSAM,
    FedYogi,
    Mimelite,
    MimeXlite,
    MoFedSAM,
)
from fedgbo.core import (
    AffineOptimiser,
    Client,
    FederatedAlgorithm,
    MaxEntropy,
    Optimiser,
    Proximal,
    SharpnessAware,
    State,
    Stats,
)
from fedgbo.optimisers import SGD, Adam, RMSProp, SGDm

FIXED: dict[type, int] = {SGD: 2, SGDm: 5, RMSProp: 5, Adam: 8}  # per parameter and local step, with fixed statistics
MOVING: dict[type, int] = {SGD: 2, SGDm: 8, RMSProp: 5, Adam: 11}  # and with statistics that move
TERMS = {Proximal: 3, MaxEntropy: 0, SharpnessAware: 4}  # the last: ‖g‖ (2), and y + ρ g / ‖g‖ (2)
PLAIN = (FedAvg, FedProx, FedMAX, FedSAM, AdaptiveFedOpt, FedAvgM, FedAdam, FedYogi, FedAdagrad)
CORRECTED = 3  # SCAFFOLD's local step: y - η (g + correction)


def step_operations(algorithm: FederatedAlgorithm) -> int | None:
    """Return the operations per parameter and local step, as the paper counts them; None for a class it has not.

    >>> from fedgbo import FedGBO, SGDm
    >>> step_operations(FedGBO(SGDm(lr=0.1, beta=0.9)))
    5
    """
    own = _own_operations(algorithm)
    terms = [TERMS.get(type(term)) for term in algorithm.terms]
    return None if own is None or None in terms else own + sum(term for term in terms if term is not None)


def _own_operations(algorithm: FederatedAlgorithm) -> int | None:
    if isinstance(algorithm, Averaged):  # its clients are those of its base
        return _own_operations(algorithm.base)
    kind = type(algorithm)
    if kind in PLAIN:
        return FIXED[SGD]
    if kind in (FedCM, MoFedSAM):
        return FIXED[SGDm]
    if kind is SCAFFOLD:
        return CORRECTED
    optimiser: Any = type(getattr(algorithm, "optimiser", None))
    if kind in (FedGBO, Mimelite, MimeXlite) and optimiser in FIXED:
        summed = isinstance(algorithm, FedGBO) and not algorithm.inverts  # clients also sum up their gradients
        return FIXED[optimiser] + summed
    return MOVING.get(optimiser) if kind is MFL else None


class Meter:
    """Tells how many operations per parameter a client update takes; counts them where there is no formula."""

    def __init__(self, algorithm: FederatedAlgorithm) -> None:
        self._per_step = step_operations(algorithm)
        self._counted: dict[tuple[int, ...], float | None] = {}  # by the local steps and vectors downloaded

    def client_update(
        self, algorithm: FederatedAlgorithm, down: State, client: Client, clients: int = 1
    ) -> tuple[State, float | None]:
        """Run the client update; return its upload and its operations per parameter.

        Under vmap, `client` stands for that many clients, and a vector for one of each client.
        """
        if self._per_step is not None:
            return algorithm.client_update(down, client), float(self._per_step * client.steps)
        key = client.steps, len(down.stats)  # the two exchanges of a round differ in what is downloaded
        if key in self._counted:
            return algorithm.client_update(down, client), self._counted[key]
        with _Operations({n * down.params.numel() for n in (1, clients)}) as operations:
            counted = _CountedClient(client, operations)
            up = algorithm.client_update(down, counted)
        client.state = counted.state  # an algorithm may replace the whole dict
        self._counted[key] = operations.count
        return up, operations.count


class _CountedClient(Client):
    """A client whose own computations are left out of the count, but for the local steps of `descend`."""

    def __init__(self, client: Client, operations: "_Operations") -> None:
        self._client, self._operations = client, operations
        self.steps, self.state = client.steps, client.state

    def __getattr__(self, name: str) -> Any:  # id and samples, which clients under vmap do not have
        return getattr(self._client, name)

    @property
    def rng(self) -> np.random.Generator:
        return self._client.rng

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        with self._operations.paused():
            return self._client.gradient(params, again=again)

    def full_gradient(self, params: Tensor) -> Tensor:
        with self._operations.paused():
            return self._client.full_gradient(params)

    def loss(self, params: Tensor) -> float:
        with self._operations.paused():
            return self._client.loss(params)

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        if not isinstance(optimiser, AffineOptimiser):
            return super().descend(params, optimiser, stats)
        offset, _ = optimiser.affine(optimiser.anchor(stats, params))
        self._operations.count += self.steps * (2 + isinstance(offset, Tensor))
        with self._operations.paused():
            return self._client.descend(params, optimiser, stats)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts arithmetic whose result is as long as the model; making or copying a vector is not arithmetic."""

    def __init__(self, lengths: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0.0
        self._lengths, self._paused = lengths, False

    @contextmanager
    def paused(self) -> Any:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        arithmetic = torch.Tag.pointwise in func.tags and func.overloadpacket is not torch.ops.aten.clone
        if not self._paused and arithmetic and isinstance(result, Tensor) and result.numel() in self._lengths:
            self.count += 1
        return result
