"""A whole network in one call of C code (native/network.c): minibatches, loss, gradient and local steps.

Between torch's operations a thread holds Python's lock, and every operation reads from memory what the one before it
wrote. A network that is a stack of layers that the C file knows avoids both.
"""

import copy
import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineStep, DataError, MaxEntropy, Proximal, Rows, Term
from fedgbo.engines.layers.plan import LOSSES, Plan, read_plan
from fedgbo.native import TYPES, addresses, library
from fedgbo.tasks.task import Batch


class Network:
    """Runs a plan; it keeps the room for what lies between the layers from one call to the next.

    Dropout draws from torch's generator, before each call.
    """

    def __init__(self, plan: Plan, kind: torch.dtype, native: ctypes.CDLL) -> None:
        self.plan, self.kind, self._draws = plan, kind, plan.draws
        self._function = getattr(native, f"fedgbo_network_{TYPES[kind]}")
        self._rooms: dict[int, tuple[Tensor, Tensor, Rows]] = {}  # plan, room and 0, 1, 2, ... by batch size

    def __deepcopy__(self, memo: dict[int, Any]) -> "Network":
        """Return a network with room of its own: addresses of C functions cannot be copied."""
        other = copy.copy(self)
        other._rooms = {}
        return other

    def takes(self, inputs: Any, targets: Any) -> bool:
        """Tell whether samples are of the shape and the types that the network was read for."""
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            return False
        if inputs.shape[1:] != self.plan.input or inputs.dtype != self.kind or not inputs.is_cpu or len(inputs) == 0:
            return False
        if self.plan.loss is functional.cross_entropy:
            return targets.shape == inputs.shape[:1] and targets.dtype == torch.int64
        return targets.shape == (len(inputs), self.plan.outputs) and targets.dtype == self.kind

    def step(self, params: Tensor, batch: Batch, step: AffineStep, terms: Sequence[Term] = ()) -> Tensor:
        """Take a local step in place with the gradient of a batch; return the loss before it."""
        inputs, targets = batch
        batches = inputs, targets, self._room(len(inputs))[2]
        about = None, None, 0.0, *addresses(step), weight_of(MaxEntropy, terms)
        return torch.full((), self._run(params, batches, len(inputs), about)[0], dtype=self.kind)

    def gradient(self, params: Tensor, batch: Batch, grad: Tensor, terms: Sequence[Term] = ()) -> Tensor:
        """Fill `grad` with the gradient of the loss of a batch, plus FedMAX's term; return that loss."""
        inputs, targets = batch
        size = len(inputs)
        _, _, rows = self._room(size)
        about = grad.data_ptr(), None, 0.0, None, None, 0.0, weight_of(MaxEntropy, terms)
        losses = self._run(params, (inputs, targets, rows), size, about)
        return torch.full((), losses[0], dtype=self.kind)

    def descend(
        self,
        params: Tensor,
        batches: tuple[Tensor, Tensor, Rows],
        count: int,
        step: AffineStep,
        terms: Sequence[Term],
        start: Tensor,
    ) -> list[float]:
        """Take a local step in place for each of `count` batches; they are rows of samples (inputs, targets).

        FedProx's term pulls to the parameters `start`. Returns the loss before each step, with FedMAX's term.
        """
        mu, entropy = weight_of(Proximal, terms), weight_of(MaxEntropy, terms)
        rest = None, start.data_ptr() if mu else None, mu, *addresses(step), entropy
        return self._run(params, batches, len(batches[2]) // count, rest)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample's input."""
        return prod(self.plan.input) * self.kind.itemsize

    @property
    def mask_bytes(self) -> int:
        """Bytes of a sample's masks of dropout."""
        return sum(layer.drawn for layer in self.plan.layers) * self.kind.itemsize

    def _run(
        self, params: Tensor, batches: tuple[Tensor, Tensor, Rows], size: int, rest: tuple[float | None, ...]
    ) -> list[float]:
        (inputs, targets, rows), (plan, room, _) = batches, self._room(size)
        inputs, targets, chosen = inputs.contiguous(), targets.contiguous(), torch.from_numpy(rows)
        losses = (ctypes.c_double * (len(rows) // size))()
        masks = self.plan.masks(size, len(losses), self.kind) if self._draws else None
        code = self._function(
            *(plan.data_ptr(), inputs.data_ptr(), targets.data_ptr(), chosen.data_ptr(), len(losses)),
            *(params.data_ptr(), *rest, None if masks is None else masks.data_ptr(), room.data_ptr(), losses),
        )
        if code < 0:
            last = self.plan.outputs - 1
            raise DataError(f"a label is not one of the model's outputs; labels must be 0 ... {last}")
        return list(losses)

    def _room(self, batch: int) -> tuple[Tensor, Tensor, Rows]:
        if batch not in self._rooms:
            plan = self.plan.numbers(batch)
            count = self._function(plan.data_ptr(), *[None] * 3, 0, *[None] * 3, 0.0, None, None, 0.0, 0.0, *[None] * 3)
            if len(self._rooms) > 2:  # batches of many sizes: keep a few
                self._rooms.clear()
            self._rooms[batch] = plan, torch.zeros(count, dtype=self.kind), np.arange(batch)
        return self._rooms[batch]


TERMS = (Proximal, MaxEntropy)  # those that the C code has


def weight_of(kind: type[Proximal] | type[MaxEntropy], terms: Sequence[Term]) -> float:
    """Return FedProx's μ or FedMAX's β; 0 where there is no such term."""
    found = [term for term in terms if type(term) is kind]
    return float(sum(term.mu if isinstance(term, Proximal) else term.beta for term in found))


def network_for(module: nn.Module, inputs: Tensor, loss: Callable[..., Tensor]) -> Network | None:
    """Return a network if the module is a stack that the C code can compute for inputs like these; else None."""
    native, parameters = library(), list(module.parameters())
    known = any(loss is one for one in LOSSES)  # a user's loss need not be hashable
    if native is None or not parameters or not known or inputs.ndim < 2 or 0 in inputs.shape:
        return None
    kind = parameters[0].dtype
    if kind not in TYPES or any(p.dtype != kind or not p.requires_grad or not p.is_cpu for p in parameters):
        return None
    plan = read_plan(module, inputs.to(kind), loss)
    return None if plan is None else Network(plan, kind, native)
