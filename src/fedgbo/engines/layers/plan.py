"""The plan of a network for the C code (native/network.c), read from a module that is a stack of known layers.

An nn.Sequential is read layer by layer. Of any other module, torch.fx records which layers and functions its `forward`
calls; it is a stack if each of them takes what the one before it returned, and nothing else.
"""

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

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


def read_plan(module: nn.Module, shape: tuple[int, ...], loss: Callable[..., Tensor]) -> Plan | None:
    """Return the plan of a module for samples of this shape, or None if it is not a stack of known layers."""
    if any(is_changed(m) for m in module.modules()):
        return None
    leaves = list(_leaves(module))
    if any(leaf is None for leaf in leaves):
        return None
    known = [leaf for leaf in leaves if leaf is not None]
    # in the order of the flat vector; a layer in two places, or one that is not called, has another number of them
    if list(map(id, (p for leaf in known for p in leaf.parameters()))) != list(map(id, module.parameters())):
        return None
    layers = read_layers(known, shape)
    return None if layers is None else Plan(loss, shape, layers)


def is_changed(module: nn.Module) -> bool:
    """Return whether a module does more than its class: it has hooks, or a `forward` of its own."""
    hooks = any(value for key, value in vars(module).items() if key.endswith("_hooks") and isinstance(value, dict))
    return hooks or "forward" in vars(module)


def _leaves(module: nn.Module) -> Iterator[nn.Module | None]:
    """Yield the layers of a module in the order in which they compute; None where that is not known."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    elif type(module).__module__.startswith("torch.nn."):
        if type(module) is not nn.Identity:
            yield module
    else:
        yield from _traced(module)


FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {  # and the layers that compute the same, with the same arguments
    functional.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU,
    functional.tanh: nn.Tanh, torch.tanh: nn.Tanh, "tanh": nn.Tanh,
    functional.sigmoid: nn.Sigmoid, torch.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    functional.gelu: nn.GELU, functional.silu: nn.SiLU,
    functional.max_pool2d: nn.MaxPool2d, functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    torch.flatten: nn.Flatten, "flatten": nn.Flatten,
}  # fmt: skip
NOISE: dict[Any, Callable[..., nn.Module]] = {functional.dropout: nn.Dropout, functional.dropout2d: nn.Dropout2d}


def _traced(module: nn.Module) -> list[nn.Module | None]:
    """Return the layers of a module with a `forward` of its own; [None] unless they are a stack."""
    trained = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    if any(type(m) not in (nn.Conv2d, nn.Linear) for m in trained) or next(module.buffers(), None) is not None:
        return [None]
    generators = Generators()
    try:
        same = {id(p): p for p in module.parameters()}
        twin = copy.deepcopy(module, same).train()  # tracing may leave its records in attributes
        with generators.kept():
            before = generators.marks()
            layers = _called(fx.Tracer().trace(twin), twin)
            drawn = generators.drawn_from(before) is not None
        kept = all(_plain(one) == _plain(other) for one, other in zip(module.modules(), twin.modules(), strict=True))
    except Exception:  # whatever a `forward` raises that is called without numbers
        return [None]
    return layers if kept and not drawn else [None]  # a `forward` that counts or draws is not the same in each call


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that are not tensors or layers."""
    return {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}


def _called(graph: fx.Graph, module: nn.Module) -> list[nn.Module | None]:
    """Return the layers of a graph that is one chain from the input to the output; else [None]."""
    layers: list[nn.Module | None] = []
    last: fx.Node | None = None
    sizes: set[fx.Node] = set()  # of whole batches
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
        elif node.op == "output":
            return layers if node.args == (last,) else [None]
        elif _is_size(node, last, sizes):
            sizes.add(node)
        else:
            layer = _layer(node, last, sizes, module)
            if layer is None:
                return [None]
            layers.append(layer)
            last = node
    return [None]


def _is_size(node: fx.Node, last: fx.Node | None, sizes: set[fx.Node]) -> bool:
    """Return whether this is `x.size(0)`, `x.shape`, `x.size()`, or the first number of these two."""
    if node.op == "call_method" and node.target == "size":
        return node.args in ((last, 0), (last,))
    if node.op == "call_function" and node.target is getattr:
        return node.args == (last, "shape")
    return node.target is operator.getitem and node.args[0] in sizes and node.args[1:] == (0,)


def _layer(node: fx.Node, last: fx.Node | None, sizes: set[fx.Node], module: nn.Module) -> nn.Module | None:
    """Return the layer that computes what the node computes from what the node before it returned."""
    if not node.args or node.args[0] is not last:
        return None
    rest, options = node.args[1:], dict(node.kwargs)
    if node.op == "call_module":
        return module.get_submodule(str(node.target)) if not rest and not options else None
    if node.op == "call_method" and node.target in ("view", "reshape"):
        by_size = len(rest) == 2 and rest[0] in sizes and isinstance(rest[1], int)
        by_count = len(rest) == 2 and rest[0] == -1 and isinstance(rest[1], int)
        return nn.Flatten() if by_size or by_count else None  # another count would not fit the next layer
    if any(isinstance(value, fx.Node) for value in (*rest, *options.values())):
        return None
    if node.target in NOISE and not rest and options.pop("training", True):
        return NOISE[node.target](**options)
    if node.target in FUNCTIONS:
        return FUNCTIONS[node.target](*rest, **options)
    return None


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
