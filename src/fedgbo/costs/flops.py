"""Floating point operations of a model: as the paper counts them (Appendix B), and as torch executes them.

In the paper F is the cost of one sample's forward pass: a convolution's multiply-adds plus one per output for its bias,
a linear layer's in x out, a recurrent cell's products plus its elementwise operations. We add the products of attention
and of transposed convolutions. Forward and backward together are 3 F. torch's count is of a real forward and backward
pass: a multiplication and an addition are two operations, and the first layer has no gradient of its input to compute.
Neither counts activations, pooling, normalisation and the loss. F leaves out layers for which there is no rule here.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedgbo.data.tree import call, samples_in

# Gates of a recurrent cell, and its operations per hidden unit and time step besides the products. The paper counts 13
# for a GRU. An LSTM has 13 as well: 4 sums, 4 gates, 3 operations for the new cell, its tanh, and the product with o.
CELLS = {"GRU": (3, 13), "LSTM": (4, 13), "RNN_TANH": (1, 2), "RNN_RELU": (1, 2)}


@dataclass(frozen=True)
class ModelCost:
    """What one sample costs; None where it could not be counted, and `note` then says why."""

    macs: int | None  # F
    gradient_flops: float | None
    note: str | None = None

    @classmethod
    def of(cls, module: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> "ModelCost":
        """Count on a copy of the module, so that the run's own model is not touched. Never raises."""
        try:
            with torch.random.fork_rng(devices=[]):
                return cls(
                    macs=forward_macs(copy.deepcopy(module), inputs),
                    gradient_flops=gradient_flops(copy.deepcopy(module), loss, inputs, targets),
                )
        except Exception as error:  # whatever a user's module raises where it is copied or watched
            return cls(
                None, None, f"FLOPs could not be counted for this model: {type(error).__name__}: {str(error)[:200]}"
            )


def gradient_flops(module: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> float:
    """Return the operations of one sample's gradient, by computing that of a batch."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _Counter() as counter:
        module.train()
        torch.autograd.grad(loss(call(module, inputs), targets), trained, allow_unused=True)
    return float(counter.flops) / samples_in(inputs, targets)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up torch's own formulas for the operations that are executed.

    torch's FlopCounterMode does the same, but imports torch's compiler first: 2 s and 80 MB for every run.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # True is torch's default, and imports the compiler
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


def forward_macs(module: nn.Module, inputs: Any) -> int:
    """Return F of one sample, by running `inputs`, a batch of any size, through the module once."""
    total = 0

    def count(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        nonlocal total
        rule = next(rule for kind, rule in _COUNTS.items() if isinstance(layer, kind))
        total += rule(layer, [*args, *named.values()], output)

    known = [layer for layer in module.modules() if isinstance(layer, tuple(_COUNTS))]
    hooks = [layer.register_forward_hook(count, with_kwargs=True) for layer in known]
    was_training = module.training
    try:
        with torch.no_grad():
            module.eval()
            call(module, inputs)
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return total // samples_in(inputs)


def local_update_flops(samples: float, steps: float, macs: int, params: int, step_ops: int) -> float:
    """N of Appendix B: `samples` gradients of one sample each, and `steps` updates of step_ops · |x| operations."""
    return samples * 3 * macs + steps * step_ops * params


def _conv(layer: Any, inputs: Sequence[Any], output: Tensor) -> int:
    per_output = layer.in_channels // layer.groups * layer.weight[0, 0].numel() + (layer.bias is not None)
    return int(output.numel() * per_output)


def _transposed_conv(layer: Any, inputs: Sequence[Any], output: Tensor) -> int:
    per_input = layer.out_channels // layer.groups * layer.weight[0, 0].numel()
    return int(inputs[0].numel() * per_input) + (output.numel() if layer.bias is not None else 0)


def _linear(layer: Any, inputs: Sequence[Any], output: Tensor) -> int:
    return int(output.numel() * layer.in_features)


def _recurrent(layer: Any, inputs: Sequence[Any], output: Any) -> int:
    x = inputs[0]
    tokens = prod((x.data if isinstance(x, PackedSequence) else x).shape[:-1])  # samples x time, in either order
    gates, elementwise = CELLS[layer.mode]
    hidden, directions, total = layer.hidden_size, 1 + layer.bidirectional, 0
    width, made = layer.input_size, layer.proj_size or hidden
    for _ in range(layer.num_layers):
        total += directions * hidden * (gates * (width + made) + elementwise + layer.proj_size)
        width = directions * made
    return int(tokens * total)


def _attention(layer: Any, inputs: Sequence[Any], output: Any) -> int:
    """Count the projections of queries, keys, values and outputs, and the products of queries, keys and values."""
    query, key, value = inputs[:3]
    size, length = layer.embed_dim, key.shape[-2 if layer.batch_first or key.ndim == 2 else 0]
    queries, keys, values = (prod(x.shape[:-1]) for x in (query, key, value))
    return int(size * (queries * (2 * size + 2 * length) + keys * layer.kdim + values * layer.vdim))


_COUNTS: dict[type[nn.Module], Callable[[Any, Sequence[Any], Any], int]] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed_conv),
    nn.Linear: _linear,
    nn.RNNBase: _recurrent,
    nn.MultiheadAttention: _attention,
}
