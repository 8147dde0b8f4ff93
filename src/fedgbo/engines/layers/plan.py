"""The plan of a network for the C code (native/network.c), read from a module that is a stack of known layers.

The functions of torch that a forward pass calls are recorded. The module is a stack if all of them are known, and each
takes what the one before it returned. Whatever else a `forward` does, such as a hook on a gradient, is not known.
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedgbo.engines.generators import Generators

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


def read_plan(module: nn.Module, inputs: Tensor, loss: Callable[..., Tensor]) -> Plan | None:
    """Return the plan of a module for samples like these inputs, or None if it is not a stack of known layers."""
    if any(is_changed(m) for m in module.modules()) or next(module.buffers(), None) is not None:
        return None
    leaves = _recorded(module, inputs)
    # in the order of the flat vector; a layer in two places, or one that is not called, has another number of them
    if list(map(id, (p for leaf in leaves for p in leaf.parameters()))) != list(map(id, module.parameters())):
        return None
    layers = read_layers(leaves, tuple(inputs.shape[1:]))
    return None if layers is None else Plan(loss, tuple(inputs.shape[1:]), layers)


def is_changed(module: nn.Module) -> bool:
    """Return whether a module does more than its class: it has hooks, or a `forward` of its own."""
    hooks = any(value for key, value in vars(module).items() if key.endswith("_hooks") and isinstance(value, dict))
    return hooks or "forward" in vars(module)


RELUS = (functional.relu, torch.relu, Tensor.relu)
TANHS = (functional.tanh, torch.tanh, Tensor.tanh)
SIGMOIDS = (functional.sigmoid, torch.sigmoid, Tensor.sigmoid)
FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {  # and the layers that compute the same, with the same arguments
    **dict.fromkeys(RELUS, nn.ReLU), **dict.fromkeys(TANHS, nn.Tanh), **dict.fromkeys(SIGMOIDS, nn.Sigmoid),
    functional.gelu: nn.GELU, functional.silu: nn.SiLU,
    functional.max_pool2d: nn.MaxPool2d, functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}  # fmt: skip
NOISE: dict[Any, Callable[..., nn.Module]] = {functional.dropout: nn.Dropout, functional.dropout2d: nn.Dropout2d}
RESHAPED = {torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view}
READ = {  # these change nothing
    Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point, Tensor.is_contiguous,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda", "requires_grad")),
}  # fmt: skip


def _recorded(module: nn.Module, inputs: Tensor) -> list[nn.Module]:
    """Return the layers that a forward pass in training goes through; none unless they are a stack."""
    generators = Generators()
    try:
        same = {id(p): p for p in module.parameters()}
        twin = copy.deepcopy(module, same)  # a `forward` may write into attributes
        twin.train()
        with generators.kept(), torch.enable_grad():
            generators.start(0)
            before = generators.marks()
            with _Recorder(inputs) as recorder:
                last = twin(inputs)
            after = generators.marks()
        kept = all(_attributes(a) == _attributes(b) for a, b in zip(module.modules(), twin.modules(), strict=True))
    except Exception:  # whatever a user's `forward`, or a comparison of attributes, raises
        return []
    drawn = any(after[whose] != before[whose] for whose in ("numpy", "Python"))  # torch's draws are recorded
    return recorder.layers if kept and not drawn and recorder.stack and last is recorder.last else []


ATTRIBUTES_OF_MODULES = frozenset(vars(nn.Module()))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that are neither tensors nor layers: a `forward` that changes them is no stack."""
    return {key: value for key, value in vars(module).items() if key not in ATTRIBUTES_OF_MODULES}


class _Recorder(TorchFunctionMode):
    """Records torch's functions in this thread as layers, as long as each takes what the one before it returned."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.layers: list[nn.Module] = []
        self.last, self.stack = inputs, True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        shape, given = self.last.shape, kwargs or {}
        out = func(*args, **given)
        if func in READ:
            return out
        usual = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        layers = None
        if usual and args and args[0] is self.last and isinstance(out, Tensor):
            with suppress(TypeError, ValueError):  # from arguments that no layer has
                layers = _layers(func, args[1:], given, shape, out)
        if layers is None:
            self.stack = False
        elif self.stack:
            self.layers.extend(layers)
            self.last = out
        return out


def _layers(
    func: Any, rest: tuple[Any, ...], given: dict[str, Any], shape: torch.Size, out: Tensor
) -> list[nn.Module] | None:
    """Return the layer, or none, that does to an input of this shape what the function does; None if none is known."""
    if func in (functional.conv2d, functional.linear):
        return _trained(func, *rest, **given)
    if func in RESHAPED:
        return [nn.Flatten()] if out.shape == (shape[0], shape[1:].numel()) else None
    if func in NOISE:
        options = dict(given)
        return [NOISE[func](**options)] if not rest and options.pop("training", True) else None
    return [FUNCTIONS[func](*rest, **given)] if func in FUNCTIONS else None


def _trained(func: Any, weight: Tensor, bias: Tensor | None = None, *rest: Any, **given: Any) -> list[nn.Module]:
    """Return the layer with these very parameters, from whose shapes its sizes follow."""
    outputs, inputs, *kernel = weight.shape
    if bias is not None and bias.shape != (outputs,):
        raise ValueError("torch would broadcast this bias")
    layer: nn.Module
    if func is functional.linear:
        layer = nn.Linear(inputs, outputs, bias is not None, device="meta")
    else:
        names = ("stride", "padding", "dilation", "groups")
        options = dict(zip(names, rest, strict=False)) | given
        channels = inputs * options.get("groups", 1)
        layer = nn.Conv2d(channels, outputs, (kernel[0], kernel[1]), bias=bias is not None, device="meta", **options)
    layer.weight, layer.bias = weight, bias  # raises unless they are parameters
    return [layer]


def read_layers(leaves: list[nn.Module], shape: tuple[int, ...]) -> tuple[Layer, ...] | None:
    """Return the plan of layers for samples of this shape, or None if one of them is not known."""
    layers: list[Layer] = []
    for leaf in leaves:
        layer, images = _read(leaf, shape), len(shape) == 3
        if layer is None:
            return None
        shape = layer.shape(shape)
        if min(shape) < 1:
            return None
        if layer.kind != FLATTEN or (layers and images):  # features, and samples that go in as such, are flat already
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
    if leaf.inplace or not 0 < leaf.p < 1 or len(shape) not in ((3,) if by_channel else (1, 3)):
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
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, value)  # type: ignore[return-value]


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
