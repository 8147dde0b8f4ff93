"""A user's nn.Module: built from the run's seed, copied for each worker, and called with inputs of any form."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
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

    @classmethod
    def of(cls, make: Callable[[], nn.Module], seed: int, inputs: Any) -> "Blueprint":
        """Build a module from the seed. If `make` returns the same one each time, the run trains copies of it."""
        module = _seeded(make, seed)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the task's model must return an nn.Module, not {type(module).__name__}")
        try:
            module = copy.deepcopy(module)
        except Exception as error:  # such as of the old weight_norm, whose weights are not leaves
            if _seeded(make, seed) is module:
                raise ConfigError(
                    f"the task's model returns the same {type(module).__name__} each time, and it cannot be copied "
                    f"({error}); build a new one in the function"
                ) from error
        return cls(_shaped(module, inputs), make, seed, inputs)

    def copy(self, *, share_frozen: bool = False) -> nn.Module:
        """Return a copy of the module; with `share_frozen`, it has the same frozen parameters, which nobody changes."""
        frozen = {id(p): p for p in self.module.parameters() if not p.requires_grad}
        try:
            return copy.deepcopy(self.module, frozen if share_frozen else {})
        except Exception:  # whatever a user's module raises where it is copied
            other = _shaped(_seeded(self.make, self.seed), self.inputs)
            other.load_state_dict(self.module.state_dict())
            return other


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
