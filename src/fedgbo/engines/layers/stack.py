"""A whole network in one call of C code: convolutions, pooling, linear layers, loss and gradient.

Between torch's operations a thread holds Python's lock, and every operation reads from memory what the one before it
wrote. A network that is an nn.Sequential of layers that the C file knows avoids both.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgbo.core import AffineStep, DataError
from fedgbo.engines.layers.conv import FastMaxPool2d
from fedgbo.native import addresses, library

LAYERS = 8  # of a kind at most, as in the C file


@dataclass(frozen=True)
class Stack:
    """What the C file needs to know of the network: its `plan` without the batch size."""

    input: tuple[int, int, int]  # channels, height, width
    convolutions: tuple[tuple[int, int, int, int, int], ...]  # outputs, kernel height and width, ReLU, pooling
    linears: tuple[tuple[int, int], ...]  # outputs, ReLU

    def plan(self, batch: int) -> Tensor:
        """Return it as the C file reads it, for batches of so many samples."""
        numbers = [batch, *self.input, len(self.convolutions), len(self.linears)]
        for layer in (*self.convolutions, *self.linears):
            numbers.extend(layer)
        return torch.tensor(numbers, dtype=torch.int32)


class StackRunner:
    """Runs a stack; it keeps the room for what lies between the layers from one batch to the next."""

    def __init__(self, stack: Stack, native: ctypes.CDLL) -> None:
        self.stack, self._native = stack, native
        self._rooms: dict[int, tuple[Tensor, Tensor]] = {}  # plan and room by batch size

    def takes(self, inputs: Tensor, targets: Tensor) -> bool:
        """Tell whether a batch is of the shape and the types that the network was read for."""
        fits = inputs.shape[1:] == self.stack.input and targets.shape == inputs.shape[:1] and len(inputs) > 0
        return fits and inputs.is_cpu and inputs.dtype == torch.float32 and targets.dtype == torch.int64

    def gradient(self, params: Tensor, inputs: Tensor, targets: Tensor, grad: Tensor) -> Tensor:
        """Fill `grad` with the gradient of the mean cross-entropy; return that loss."""
        return self._run(params, inputs, targets, (grad.data_ptr(), None, None, 0.0))

    def step(self, params: Tensor, inputs: Tensor, targets: Tensor, step: AffineStep) -> Tensor:
        """Take a step with the gradient at `params`, in place; return the loss before it."""
        return self._run(params, inputs, targets, (None, *addresses(step)))

    def _run(self, params: Tensor, inputs: Tensor, targets: Tensor, rest: tuple[Any, ...]) -> Tensor:
        plan, room = self._room(len(inputs))
        inputs, loss = inputs.contiguous(), torch.empty(())
        given = [t.data_ptr() for t in (plan, inputs, targets, params)]
        if self._native.fedgbo_stack(*given, *rest, room.data_ptr(), loss.data_ptr()) < 0:
            classes = self.stack.linears[-1][0]
            raise DataError(f"a label is not one of the model's outputs; labels must be 0 ... {classes - 1}")
        return loss

    def _room(self, batch: int) -> tuple[Tensor, Tensor]:
        if batch not in self._rooms:
            plan = self.stack.plan(batch)
            floats = self._native.fedgbo_stack(plan.data_ptr(), *[None] * 6, 0.0, None, None)
            if len(self._rooms) > 2:  # batches of many sizes: keep a few
                self._rooms.clear()
            self._rooms[batch] = plan, torch.empty(floats)
        return self._rooms[batch]


def runner_for(module: nn.Module, inputs: Tensor) -> StackRunner | None:
    """Return a runner if the module is a stack that the C loops can compute for inputs like these; else None."""
    native = library()
    if native is None or type(module) is not nn.Sequential or inputs.ndim != 4:
        return None
    if any(p.dtype != torch.float32 or not p.requires_grad or not p.is_cpu for p in module.parameters()):
        return None
    if any(value for m in module.modules() for key, value in vars(m).items() if key.endswith("_hooks") and value):
        return None
    stack = _read(list(module), tuple(inputs.shape[1:]), 2 * native.fedgbo_lanes())
    return None if stack is None else StackRunner(stack, native)


def _read(layers: Sequence[nn.Module], shape: tuple[int, ...], wide: int) -> Stack | None:
    """Read convolutions, then nn.Flatten, then linear layers; `wide` is how many columns the C loops take at once."""
    channels, height, width = shape
    convolutions: list[tuple[int, int, int, int, int]] = []
    linears: list[tuple[int, int]] = []
    left = list(layers)
    while left and type(left[0]) is nn.Conv2d:
        conv: nn.Conv2d = left.pop(0)  # type: ignore[assignment]
        if not _plain(conv) or conv.in_channels != channels or conv.out_channels % wide:
            return None
        if convolutions and channels % wide:
            return None
        kh, kw = conv.kernel_size
        height, width = height - kh + 1, width - kw + 1
        follow = [type(layer) for layer in left[:2]]
        relu = nn.ReLU in follow if nn.MaxPool2d in follow else follow[:1] == [nn.ReLU]
        pools = nn.MaxPool2d in follow if nn.ReLU in follow else follow[:1] == [nn.MaxPool2d]
        taken, left = left[: relu + pools], left[relu + pools :]
        if pools and not all(FastMaxPool2d.supports(layer) for layer in taken if isinstance(layer, nn.MaxPool2d)):
            return None
        convolutions.append((conv.out_channels, kh, kw, int(relu), int(pools)))
        height, width, channels = height >> pools, width >> pools, conv.out_channels
        if min(height, width) < 1:
            return None
    if not left or type(left[0]) is not nn.Flatten or (left[0].start_dim, left[0].end_dim) != (1, -1):
        return None
    left, features = left[1:], channels * height * width
    while left and type(left[0]) is nn.Linear:
        linear: nn.Linear = left.pop(0)  # type: ignore[assignment]
        relu = [type(layer) for layer in left[:1]] == [nn.ReLU]
        left = left[relu:]
        if linear.in_features != features or features % wide or linear.bias is None:
            return None
        linears.append((linear.out_features, int(relu)))
        features = linear.out_features
    ends_well = not left and linears and not linears[-1][1]
    if not ends_well or max(len(convolutions), len(linears)) > LAYERS:
        return None
    return Stack((shape[0], shape[1], shape[2]), tuple(convolutions), tuple(linears))


def _plain(conv: nn.Conv2d) -> bool:
    ones = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1
    return ones and conv.padding == (0, 0) and conv.bias is not None
