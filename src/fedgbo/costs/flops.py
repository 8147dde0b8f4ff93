"""Floating point operations of a model: as the paper counts them (Appendix B), and as torch executes them.

In the paper F is the cost of one sample's forward pass: a convolution's multiply-adds plus one per output for its bias,
a linear layer's in x out, a recurrent cell's products plus its elementwise operations. Forward and backward together
are 3 F. torch's count is of a real forward and backward pass: a multiplication and an addition are two operations, and
the first layer has no gradient of its input to compute. Neither counts activations, pooling and the loss.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgbo.data.tree import call, samples_in

GRU_ELEMENTWISE = 13  # operations per hidden unit, layer and time step besides the products


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
    # imported here: torch's counter takes half a second and 70 MB
    from torch.utils.flop_counter import FlopCounterMode

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(loss(call(module.train(), inputs), targets), trained, allow_unused=True)
    return float(counter.get_total_flops()) / samples_in(inputs, targets)


def forward_macs(module: nn.Module, inputs: Any) -> int:
    """Return F of one sample, by running `inputs`, a batch of any size, through the module once."""
    total = 0

    def count(layer: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        nonlocal total
        total += next(rule for kind, rule in _COUNTS.items() if isinstance(layer, kind))(layer, args[0], output)

    hooks = [layer.register_forward_hook(count) for layer in module.modules() if isinstance(layer, tuple(_COUNTS))]
    was_training = module.training
    try:
        with torch.no_grad():
            call(module.eval(), inputs)
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return total // samples_in(inputs)


def local_update_flops(samples: float, steps: float, macs: int, params: int, step_ops: int) -> float:
    """N of Appendix B: `samples` gradients of one sample each, and `steps` updates of step_ops · |x| operations."""
    return samples * 3 * macs + steps * step_ops * params


def _conv(layer: Any, inputs: Tensor, output: Tensor) -> int:
    per_output = layer.in_channels // layer.groups * layer.weight[0, 0].numel() + (layer.bias is not None)
    return int(output.numel() * per_output)


def _linear(layer: Any, inputs: Tensor, output: Tensor) -> int:
    return int(output.numel() * layer.in_features)


def _gru(layer: Any, inputs: Tensor, output: Any) -> int:
    steps = inputs.shape[0] * inputs.shape[1]  # samples x time, in either order
    hidden, total, width = layer.hidden_size, 0, layer.input_size
    for _ in range(layer.num_layers):
        total += 3 * hidden * (width + hidden) + GRU_ELEMENTWISE * hidden
        width = hidden
    return int(steps * total)


_COUNTS: dict[type[nn.Module], Callable[[Any, Tensor, Any], int]] = {
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Linear: _linear,
    nn.GRU: _gru,
}
