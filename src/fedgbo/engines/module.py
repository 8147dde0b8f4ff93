"""A user's nn.Module: built from the run's seed, copied for each worker, and called with inputs of any form."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgbo.core import ConfigError, DataError
from fedgbo.data.tree import call
from fedgbo.engines.generators import Generators


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A module as a run starts with it, never trained, from which the run's models are copied."""

    module: nn.Module
    make: Callable[[], nn.Module]
    seed: int
    inputs: Any  # a small batch, which gives lazy layers their shapes
    originals: list[tuple[str, nn.Parameter, Tensor | None]]  # of the module that it was copied from, and their .grad

    @classmethod
    def of(cls, make: Callable[[], nn.Module], seed: int, inputs: Any) -> "Blueprint":
        """Build a module from the seed. If `make` returns the same one each time, the run trains copies of it."""
        module = _seeded(make, seed)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the task's model must return an nn.Module, not {type(module).__name__}")
        _check_copyable(module)
        originals = [(name, p, p.grad) for name, p in module.named_parameters() if p.requires_grad]
        try:
            module = copy.deepcopy(module)
        except Exception as error:  # such as of the old weight_norm, whose weights are not leaves
            if _seeded(make, seed) is module:
                raise ConfigError(
                    f"the task's model returns the same {type(module).__name__} each time, and it cannot be copied "
                    f"({error}); build a new one in the function"
                ) from error
            originals = []
        given = {id(p): name for name, p, _ in originals}
        if kept := [given[id(p)] for p in module.parameters() if id(p) in given]:
            raise ConfigError(f"copies of the model share its parameter '{kept[0]}'; let its layer be copied")
        return cls(_shaped(module, inputs), make, seed, inputs, originals)

    def check_originals(self) -> None:
        """Raise if a gradient of a copy was one of the module that was copied; forget that module."""
        reached = [(name, p, grad) for name, p, grad in self.originals if p.grad is not grad]
        self.originals.clear()
        for _, p, grad in reached:
            p.grad = grad
        if reached:
            raise ConfigError(
                f"the model's forward reaches the parameter '{reached[0][0]}' through a function that remembers the "
                "module, such as a lambda that uses self, so that copies of the model do not train it; make the "
                "function a method"
            )

    def copy(self, *, share_frozen: bool = False) -> nn.Module:
        """Return a copy of the module; with `share_frozen`, it has the same frozen parameters, which nobody changes."""
        frozen = {id(p): p for p in self.module.parameters() if not p.requires_grad}
        try:
            return copy.deepcopy(self.module, frozen if share_frozen else {})
        except Exception:  # whatever a user's module raises where it is copied
            other = _shaped(_seeded(self.make, self.seed), self.inputs)
            other.load_state_dict(self.module.state_dict())
            return other


def _check_copyable(module: nn.Module) -> None:
    """Raise if a copy of the module would not train as the module itself does: a run trains copies."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                f"{f'the layer {name!r} of the model' if name else 'the model'} is a torch.jit module, and copies of "
                "those do not train; give the module that it was made from"
            )
    found = []
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise ConfigError(
                f"the model's parameter '{name}' has a hook, which copies of the model do not have; change the "
                "gradient in client_update, or the parameter in forward or by a parametrization"
            )
        if p.requires_grad and not is_lazy(p) and p.layout == torch.strided and p.numel():
            last = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
            found.append((p.device.type, p.data_ptr(), p.data_ptr() + last * p.element_size(), name))
    for (kind, _, end, one), (other_kind, begin, _, other) in pairwise(sorted(found)):
        if kind == other_kind != "meta" and begin <= end:
            raise ConfigError(
                f"the model's parameters '{one}' and '{other}' share memory, which copies of the model do not; assign "
                "one nn.Parameter to both places"
            )


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    Generators().seed(seed, "model")
    return make()


def _shaped(module: nn.Module, inputs: Any) -> nn.Module:
    """Give lazy layers their shapes by a forward pass."""
    if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        try:
            with torch.no_grad():
                call(module, inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise DataError(f"the model fails on a batch of inputs: {error}") from error
    return module


def last_linear(module: nn.Module, inputs: Any) -> nn.Linear:
    """Find the Linear that makes the output, by running the module once."""
    ran: list[nn.Module] = []
    leaves = [layer for layer in module.modules() if next(layer.children(), None) is None]
    hooks = [
        leaf.register_forward_hook(lambda layer, *_: ran.append(layer))
        for leaf in leaves
        if next(leaf.parameters(), None) is not None
    ]
    try:
        with torch.no_grad():
            call(module, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    idle = [layer for layer in leaves if isinstance(layer, nn.Linear) and layer not in ran and not _is_inner(layer)]
    if ran and idle:
        raise ConfigError(
            "FedMAX's entropy term takes the activations that go into the model's last layer, and an nn.Linear of this "
            "model is not called as a layer; call all of them as self.layer(x), remove those that are not used, or use "
            "another algorithm"
        )
    if not ran or not isinstance(ran[-1], nn.Linear):
        last = type(ran[-1]).__name__ if ran else "no layer with parameters"
        raise ConfigError(
            "FedMAX's entropy term takes the activations that go into the model's last layer, which must be nn.Linear; "
            f"here it is {last}. End the model with an nn.Linear, or use another algorithm"
        )
    if len(ran) < 2:
        raise ConfigError(
            "FedMAX's entropy term needs a hidden layer, and this model has only its output layer; "
            "add a hidden layer, or use another algorithm"
        )
    return ran[-1]


def _is_inner(layer: nn.Linear) -> bool:
    """Return whether an nn.MultiheadAttention computes this layer itself."""
    return isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear)
