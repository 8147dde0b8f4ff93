"""A whole network in one call of C code (native/network.c): minibatches, loss, gradient and local steps.

Between torch's operations a thread holds Python's lock, and every operation reads from memory what the one before it
wrote. A network that is a stack of layers that the C file knows avoids both.
"""

import copy
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineStep, DataError, MaxEntropy, Proximal, Rows, Term
from fedgbo.native import TYPES, addresses, library
from fedgbo.tasks.task import Batch

LOSSES: dict[Callable[..., Tensor], int] = {
    functional.cross_entropy: 0,
    functional.mse_loss: 1,
}  # and their numbers in C
CONVOLUTION, MAX_POOL, MEAN_POOL, ACTIVATION, FLATTEN, LINEAR = range(6)
RELU = 0
ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.Tanh: 1, nn.Sigmoid: 2, nn.GELU: 3, nn.SiLU: 4}
DROPOUTS: dict[type[nn.Module], int] = {nn.Dropout: 5, nn.Dropout2d: 6}  # which the C file takes for activations
LAYERS = 64  # at most, as in the C file


@dataclass(frozen=True)
class Layer:
    """One line of the C file's plan."""

    kind: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    how: int = 0  # the activation; of a MAX_POOL, whether ReLU follows
    bias: int = 0
    dropped: float = 0.0  # the share of zeros in a dropout's mask
    drawn: int = 0  # numbers in it for each sample

    def numbers(self) -> tuple[int, ...]:
        return self.kind, self.outputs, *self.kernel, *self.stride, *self.padding, self.how, self.bias

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a sample after this layer."""
        if self.kind in (FLATTEN, LINEAR):
            return (self.outputs,)
        if self.kind == ACTIVATION:
            return shape
        sizes = zip(shape[1:], self.kernel, self.stride, self.padding, strict=True)
        return self.outputs, *((size + 2 * p - k) // s + 1 for size, k, s, p in sizes)


@dataclass(frozen=True)
class Plan:
    """What the C file needs to know of a network, but for the batch size."""

    loss: Callable[..., Tensor]
    input: tuple[int, ...]  # shape of a sample
    layers: tuple[Layer, ...]

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs

    @property
    def ends_linear(self) -> bool:
        return self.layers[-1].kind == LINEAR

    @property
    def draws(self) -> bool:
        return any(layer.drawn for layer in self.layers)

    def masks(self, batch: int, count: int, kind: torch.dtype) -> Tensor:
        """Draw the masks of all dropouts for `count` batches, with the very numbers that torch's layers would draw."""
        drawn = [layer for layer in self.layers if layer.drawn]
        masks = torch.empty(count, batch * sum(layer.drawn for layer in drawn), dtype=kind)
        for one in masks:
            for layer, part in zip(drawn, one.split([batch * layer.drawn for layer in drawn]), strict=True):
                part.bernoulli_(1 - layer.dropped).div_(1 - layer.dropped)
        return masks

    def numbers(self, batch: int) -> Tensor:
        """Return it as the C file reads it, for batches of so many samples."""
        images = self.layers[0].kind in (CONVOLUTION, MAX_POOL, MEAN_POOL) or FLATTEN in {x.kind for x in self.layers}
        shape = self.input if images else (prod(self.input), 1, 1)
        numbers = [batch, LOSSES[self.loss], *shape, int(images), len(self.layers)]
        for layer in self.layers:
            numbers.extend(layer.numbers())
        return torch.tensor(numbers, dtype=torch.int32)


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
    if native is None or not parameters or loss not in LOSSES or inputs.ndim < 2 or 0 in inputs.shape:
        return None
    kind = parameters[0].dtype
    if kind not in TYPES or any(p.dtype != kind or not p.requires_grad or not p.is_cpu for p in parameters):
        return None
    if any(is_changed(m) for m in module.modules()):
        return None
    leaves = list(_leaves(module))
    if sum(len(list(leaf.parameters())) for leaf in leaves) != len(parameters):  # one layer in two places
        return None
    layers = read_layers(leaves, tuple(inputs.shape[1:]))
    return None if layers is None else Network(Plan(loss, tuple(inputs.shape[1:]), layers), kind, native)


def is_changed(module: nn.Module) -> bool:
    """Return whether a module does more than its class: it has hooks, or a `forward` of its own."""
    hooks = any(value for key, value in vars(module).items() if key.endswith("_hooks") and isinstance(value, dict))
    return hooks or "forward" in vars(module)


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested nn.Sequential in order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    elif type(module) is not nn.Identity:
        yield module


def read_layers(leaves: list[nn.Module], shape: tuple[int, ...]) -> tuple[Layer, ...] | None:
    """Return the plan of layers for samples of this shape, or None if one of them is not known."""
    layers: list[Layer] = []
    for leaf in leaves:
        layer = _read(leaf, shape)
        if layer is None:
            return None
        shape = layer.shape(shape)
        if min(shape) < 1:
            return None
        if layer.kind != FLATTEN or layers:  # samples that go in as features lie as torch flattens them
            layers.append(layer)
    layers = _joined(layers)
    ends_well = len(shape) == 1 and any(layer.kind in (CONVOLUTION, LINEAR) for layer in layers)
    return tuple(layers) if ends_well and len(layers) <= LAYERS else None


def _read(leaf: nn.Module, shape: tuple[int, ...]) -> Layer | None:
    kind, images = type(leaf), len(shape) == 3
    if isinstance(leaf, nn.Conv2d) and kind is nn.Conv2d and images and leaf.in_channels == shape[0]:
        return _convolution(leaf)
    if kind in (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d) and images:
        return _pooling(leaf, shape)
    if kind in ACTIVATIONS and getattr(leaf, "approximate", "none") == "none":
        return Layer(ACTIVATION, shape[0], how=ACTIVATIONS[kind]) if len(shape) in (1, 3) else None
    if isinstance(leaf, nn.Dropout | nn.Dropout2d) and kind in DROPOUTS:
        return _dropout(leaf, shape)
    if isinstance(leaf, nn.Flatten) and kind is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1):
        return Layer(FLATTEN, prod(shape))
    if isinstance(leaf, nn.Linear) and kind is nn.Linear and shape == (leaf.in_features,):
        return Layer(LINEAR, leaf.out_features, bias=int(leaf.bias is not None))
    return None


def _convolution(leaf: nn.Conv2d) -> Layer | None:
    plain = leaf.groups == 1 and leaf.dilation == (1, 1) and leaf.padding_mode == "zeros"
    if not plain or isinstance(leaf.padding, str):
        return None
    kernel, stride, padding = _pair(leaf.kernel_size), _pair(leaf.stride), _pair(leaf.padding)
    return Layer(CONVOLUTION, leaf.out_channels, kernel, stride, padding, bias=int(leaf.bias is not None))


def _dropout(leaf: nn.Dropout | nn.Dropout2d, shape: tuple[int, ...]) -> Layer | None:
    by_channel = isinstance(leaf, nn.Dropout2d)
    if not leaf.training or not 0 < leaf.p < 1 or len(shape) not in ((3,) if by_channel else (1, 3)):
        return None  # torch draws nothing, or has a rule of its own
    drawn = shape[0] if by_channel else prod(shape)
    return Layer(ACTIVATION, shape[0], how=DROPOUTS[type(leaf)], dropped=leaf.p, drawn=drawn)


def _pooling(leaf: Any, shape: tuple[int, ...]) -> Layer | None:
    channels, *sizes = shape
    if isinstance(leaf, nn.AdaptiveAvgPool2d):
        wanted = _pair(leaf.output_size)  # type: ignore[arg-type]
        if None in wanted or any(size % out for size, out in zip(sizes, wanted, strict=True)):
            return None
        kernel = sizes[0] // wanted[0], sizes[1] // wanted[1]
        return Layer(MEAN_POOL, channels, kernel, kernel)
    numbers = _pair(leaf.kernel_size), _pair(leaf.stride), _pair(leaf.padding)
    if isinstance(leaf, nn.MaxPool2d):
        plain = leaf.dilation in (1, (1, 1)) and not leaf.return_indices
        return Layer(MAX_POOL, channels, *numbers) if plain and not leaf.ceil_mode else None
    plain = leaf.divisor_override is None and (leaf.count_include_pad or numbers[2] == (0, 0))
    return Layer(MEAN_POOL, channels, *numbers) if plain and not leaf.ceil_mode else None


def _pair(value: int | tuple[int, ...] | None) -> tuple[int, int]:
    return (value[0], value[1]) if isinstance(value, tuple) else (value, value)  # type: ignore[return-value]


def _joined(layers: list[Layer]) -> list[Layer]:
    """Let max-pooling do the ReLU beside it, on fewer values: the two commute."""
    joined: list[Layer] = []
    for layer in layers:
        before = joined[-1] if joined else None
        for pool, relu in ((before, layer), (layer, before)):
            if pool is None or relu is None or pool.kind != MAX_POOL or (relu.kind, relu.how) != (ACTIVATION, RELU):
                continue
            joined[-1] = Layer(MAX_POOL, pool.outputs, pool.kernel, pool.stride, pool.padding, how=1)
            break
        else:
            joined.append(layer)
    return joined
