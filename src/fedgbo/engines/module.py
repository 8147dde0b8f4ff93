"""A user's nn.Module: built from the run's seed, copied for each worker, and called with inputs of any form."""

import copy
import dis
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fedgbo.core import ConfigError, DataError
from fedgbo.data.tree import call
from fedgbo.engines.generators import Generators

CONSTANT = (
    int, float, complex, str, bytes, NoneType, type, tuple, FunctionType, BuiltinFunctionType, partial,
    torch.dtype, torch.device, Tensor, nn.Module,
)  # fmt: skip
COPIED = ("_modules", "_parameters", "_buffers", "_compiled_call_impl")  # or left out of copies
FUNCTIONS = 1000  # at most, in a container that is searched for functions: longer ones are data


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A module as a run starts with it, never trained, from which the run's models are copied."""

    module: nn.Module
    make: Callable[[], nn.Module]
    seed: int
    inputs: Any  # a small batch, which gives lazy layers their shapes
    originals: "list[Original]"  # of the module that it was copied from

    @classmethod
    def of(cls, make: Callable[[], nn.Module], seed: int, inputs: Any) -> "Blueprint":
        """Build a module from the seed. If `make` returns the same one each time, the run trains copies of it."""
        module = _seeded(make, seed)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the task's model must return an nn.Module, not {type(module).__name__}")
        _check_copyable(module)
        given = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        originals = [Original(name, weakref.ref(p), p.grad, _writes(p.grad)) for name, p in given]
        try:
            module = copy.deepcopy(module)
        except Exception as error:  # such as of the old weight_norm, whose weights are not leaves
            if _seeded(make, seed) is module:
                raise ConfigError(
                    f"the task's model returns the same {type(module).__name__} each time, and it cannot be copied "
                    f"({error}); build a new one in the function"
                ) from error
            return cls(_shaped(module, inputs), make, seed, inputs, [])
        copied = {id(p) for p in module.parameters()}
        if kept := [name for name, p in given if id(p) in copied]:
            raise ConfigError(f"copies of the model share its parameter '{kept[0]}'; let its layer be copied")
        return cls(_shaped(module, inputs), make, seed, inputs, originals)

    def check_originals(self) -> None:
        """Raise if a gradient of a copy went to the module that was copied, because a function keeps a part of it."""
        for name, reference, grad, writes in self.originals:
            p = reference()
            if p is not None and (p.grad is not grad or _writes(grad) != writes):
                p.grad = grad
                raise ConfigError(
                    f"the model's forward reaches the parameter '{name}' of the module that was copied, through a "
                    "function that keeps a part of it, so that copies of the model do not train it; make the function "
                    "a method"
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


class Original(NamedTuple):
    """A parameter of the module that was copied, which is not kept alive, and its gradient as it was."""

    name: str
    parameter: "weakref.ref[nn.Parameter]"
    grad: Tensor | None
    writes: int


def _writes(grad: Tensor | None) -> int:
    return 0 if grad is None else grad._version


def _check_copyable(module: nn.Module) -> None:
    """Raise if a copy of the module would not train as the module itself does: a run trains copies."""
    own = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    for name, layer in module.named_modules():
        what = f"the layer '{name}' of the model" if name else "the model"
        if isinstance(layer, torch.jit.ScriptModule) and any(p.requires_grad for p in layer.parameters()):
            raise ConfigError(
                f"{what} is a torch.jit module, and copies of those do not train; give the module that it was made from"
            )
        for key, value in _attributes(layer):
            if any(id(part) in own for part in _held(value)):
                raise ConfigError(
                    f"{what} has a function that remembers a part of the model (in its attribute {key}), such as a "
                    "lambda that uses self, and in a copy of the model it would still use the original; make it a "
                    "method, or pass the part to it"
                )
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise ConfigError(
                f"the model's parameter '{name}' has a hook, which copies of the model do not have; change the "
                "gradient in client_update, or the parameter in forward or by a parametrization"
            )
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if odd := [name for name, x in tensors if x.layout != torch.strided]:
        raise ConfigError(f"'{odd[0]}' of the model is a sparse tensor; keep it in a plain attribute, or make it dense")
    tensors = [(name, x) for name, x in tensors if _has_memory(x)]
    for (one, a), (other, b) in pairwise(sorted(tensors, key=lambda found: found[1].data_ptr())):
        if (a.requires_grad or b.requires_grad) and _overlap(a, b):
            raise ConfigError(
                f"'{one}' and '{other}' of the model share memory, which those of a copy do not; assign one "
                "nn.Parameter to both places, or compute one from the other in forward"
            )


def shares_state(module: nn.Module) -> bool:
    """Return whether a function of the module keeps, or assigns, something that copies of the module would share."""
    held = [part for layer in module.modules() for _, value in _attributes(layer) for part in _held(value)]
    functions = [part for part in held if isinstance(part, FunctionType)]
    assigned = (one.opname for part in functions for one in dis.get_instructions(part))
    return any(not isinstance(part, CONSTANT) for part in held) or bool({"STORE_DEREF", "STORE_GLOBAL"} & {*assigned})


def _attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    if not hasattr(layer, "_orig_mod"):  # made by torch.compile, which copies its function itself
        yield from ((key, value) for key, value in vars(layer).items() if key not in COPIED)


def _held(value: Any, inside: bool = False, depth: int = 5) -> Iterator[Any]:
    """Yield the functions in an attribute, and what they keep in closures and defaults: copies share it."""
    found: list[Any] = []
    if isinstance(value, FunctionType):
        inside, cells = True, (cell.cell_contents for cell in value.__closure__ or () if _is_full(cell))
        found = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells]
    elif isinstance(value, MethodType) and inside:
        found = [value.__self__, value.__func__]
    elif isinstance(value, partial):
        found = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, dict | list | tuple) and len(value) <= FUNCTIONS:
        found = [*(value.values() if isinstance(value, dict) else value)]
    if inside:
        yield value
    for part in found if depth else ():
        yield from _held(part, inside, depth - 1)


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable without a value
        return False


def _has_memory(x: Tensor) -> bool:
    return not is_lazy(x) and not x.is_quantized and x.is_cpu and x.numel() > 0


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have a number in common, not just a range of memory."""
    storage = one.untyped_storage()
    if storage.data_ptr() != other.untyped_storage().data_ptr() or one.dtype != other.dtype:
        return False
    taken = torch.zeros(storage.nbytes() // one.element_size(), dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset()).any())


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


class _Linears(TorchFunctionMode):
    """Remembers the output of the last matrix product of a linear layer."""

    last: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is functional.linear:
            self.last = out
        return out


def last_linear(module: nn.Module, inputs: Any) -> str:
    """Return the name of the Linear that makes the output, by running the module once."""
    ran: list[tuple[str, nn.Module, Any]] = []

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda layer, _, out: ran.append((name, layer, out))

    hooks = [
        layer.register_forward_hook(note(name))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (not list(layer.children()) and next(layer.parameters(), None) is not None)
    ]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.no_grad(), _Linears() as products:
            call(module, inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for buffer, value in buffers:
            buffer.data.copy_(value)
    name, last, out = ran[-1] if ran else ("", None, None)
    if not isinstance(last, nn.Linear):
        kind = type(last).__name__ if ran else "no layer with parameters"
        raise ConfigError(
            "FedMAX's entropy term takes the activations that go into the model's last layer, which must be nn.Linear; "
            f"here it is {kind}. End the model with an nn.Linear, or use another algorithm"
        )
    if products.last is not out:
        raise ConfigError(
            "FedMAX's entropy term takes the activations that go into the model's last layer, which must be called as "
            "a layer, as in self.layer(x); here the last product is not that of a layer that was called"
        )
    if len(ran) < 2:
        raise ConfigError(
            "FedMAX's entropy term needs a hidden layer, and this model has only its output layer; "
            "add a hidden layer, or use another algorithm"
        )
    return name
