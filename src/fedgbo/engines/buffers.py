"""A module's buffers: constant ones, such as masks, and those that training changes, such as running statistics."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedgbo.core import ConfigError


class Buffers:
    """The buffers that training changes, as one flat vector; `find` tells which they are.

    Constant buffers are part of the model as it was built. They are neither sent nor averaged, and a model that changes
    one of them later is refused: the change would be lost, or would depend on the order of the clients.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.moving: list[str] = []
        self._names = {name for name, _ in module.named_buffers()}  # before the first forward pass
        self._written = [(name, p, p._version) for name, p in module.named_parameters()]  # our own writes do not count
        frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad and _is_plain(p)]
        self._frozen = [(name, p, p.data_ptr(), _sum(p)) for name, p in frozen]
        self._constant: dict[str, Tensor] = {}  # copies of them

    def find(self, train: Callable[[], object]) -> None:
        """Find the buffers that training changes by training once, and put all buffers back."""
        own = {name: (buffer, buffer._version) for name, buffer in self._module.named_buffers()}
        before = {name: buffer.clone() for name, (buffer, _) in own.items()}
        train()
        after = dict(self._module.named_buffers())
        if new := [name for name in after if name not in self._names]:
            raise ConfigError(
                f"the model's buffer '{new[0]}' gets its value in forward, so clients would have different ones; "
                "register it with a value"
            )
        self.check_parameters()

        def written(name: str) -> bool:
            buffer, version = own[name]  # a write may leave the value as it is, such as that of a converged estimate
            return after[name] is not buffer or buffer._version != version or not _same(buffer, before[name])

        self.moving = [name for name in own if name in after and written(name)]
        for name in self.moving:
            if after[name].shape != before[name].shape:
                raise ConfigError(
                    f"the model's buffer '{name}' changes its shape in forward, from {tuple(before[name].shape)} to "
                    f"{tuple(after[name].shape)}, so it cannot be averaged; give it one shape"
                )
            _write(after[name], before[name])
        self._constant = {name: value for name, value in before.items() if name in after and name not in self.moving}

    def adopt(self, other: "Buffers") -> None:
        """Take over what another model of the same kind found."""
        own = dict(self._module.named_buffers())
        self.moving = list(other.moving)
        self._constant = {name: own[name].clone() for name in other._constant}

    def values(self, dtype: torch.dtype) -> Tensor | None:
        """Return the moving buffers as one vector of that type; None: there are none."""
        if not self.moving:
            return None
        named = dict(self._module.named_buffers())
        return torch.cat([named[name].detach().reshape(-1).to(dtype) for name in self.moving])

    def load(self, values: Tensor | None) -> None:
        """Give the moving buffers these values; whole numbers are rounded."""
        if values is None or not self.moving:
            return
        load_buffers(self._module, self.moving, values)

    def check_constant(self) -> None:
        """Raise if the model itself wrote into a parameter or a constant buffer."""
        self.check_parameters()
        if not self._constant:
            return
        named = dict(self._module.named_buffers())
        for name, value in self._constant.items():
            if not _same(named[name], value):  # whatever wrote it: torch does not count writes through `.data`
                raise ConfigError(
                    f"the model's buffer '{name}' was changed during training, but not by its first minibatch, so it "
                    "was taken for a constant; let every forward pass in training update it, or none"
                )

    def check_parameters(self) -> None:
        """Raise if the model itself wrote into a parameter: that is lost, or seen by other clients."""
        for name, p, version in self._written:
            if p._version != version:
                kind = "parameter" if p.requires_grad else "frozen parameter"
                raise changed_in_forward(kind, name)
        for name, p, place, before in self._frozen:  # torch does not count writes through `.data`
            if (p.is_cpu and p.data_ptr() != place) or _sum(p) != before:
                raise changed_in_forward("frozen parameter", name)


def changed_in_forward(kind: str, name: str) -> ConfigError:
    """Return the error about a model that writes into its own parameters."""
    return ConfigError(
        f"the model's {kind} '{name}' was changed in forward; make it a buffer, which is averaged over clients, or "
        "change a copy of it"
    )


def load_buffers(module: nn.Module, names: Sequence[str], values: Tensor) -> None:
    """Give a module's buffers of these names the values of one flat vector."""
    named, begin = dict(module.named_buffers()), 0
    for name in names:
        buffer = named[name]
        _write(buffer, values[begin : begin + buffer.numel()].view(buffer.shape))
        begin += buffer.numel()


def _write(buffer: Tensor, value: Tensor) -> None:
    exact = buffer.dtype.is_floating_point or not value.dtype.is_floating_point
    buffer.detach().copy_(value if exact else value.round())


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare two buffers; a NaN equals a NaN."""
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _is_plain(p: Tensor) -> bool:
    return p.is_floating_point() and not p.is_quantized and p.element_size() > 1


def _sum(p: Tensor) -> int:
    """Return a number that tells whether a parameter was changed: there may be no room for copies of all of them."""
    bits = p.detach().contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[p.element_size()])
    return int((bits ^ (bits >> 7)).sum())
