"""What the server keeps, sends and receives: a model and some statistics, all flat vectors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError


@dataclass(frozen=True, eq=False)
class State:
    """A flat vector of parameters, by name flat vectors of statistics, and the buffers that training changes.

    A download holds the model x_t, an upload the difference x_t - y. A difference has the size of a model, and its mean
    keeps digits that a mean of models would round away. Algorithms handle only parameters and statistics; the round
    loop handles the buffers, such as the running statistics of BatchNorm.
    """

    params: Tensor  # (P,)
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # each (P,), or (1,) for one number
    buffers: Tensor | None = None  # (B,); None: training changes no buffer of the model

    @property
    def nbytes(self) -> int:
        """The size of this state in bytes when it is sent."""
        return sum([x.nbytes for x in self.vectors()])

    def vectors(self) -> tuple[Tensor, ...]:
        """All vectors, in no particular order."""
        model = (self.params,) if self.buffers is None else (self.params, self.buffers)
        return (*model, *self.stats.values())

    def tensors(self) -> dict[str, Tensor]:
        """All vectors by name: `params`, `buffers`, then `stats.<name>` in the order of their names."""
        model = {"params": self.params} if self.buffers is None else {"params": self.params, "buffers": self.buffers}
        return model | {f"stats.{name}": self.stats[name] for name in sorted(self.stats)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "State":
        """Rebuild the state from `tensors`."""
        stats = {name.removeprefix("stats."): t for name, t in tensors.items() if name.startswith("stats.")}
        return cls(tensors["params"], stats, tensors.get("buffers"))

    def to(self, dtype: torch.dtype) -> "State":
        """Round every vector to `dtype`."""
        same = [x.dtype == dtype for x in self.vectors()]
        return self if all(same) else self._each(lambda x: x.to(dtype))

    def on(self, device: torch.device | str) -> "State":
        """Move every vector to `device`."""
        return self._each(lambda x: x.to(device))

    def clone(self) -> "State":
        """Copy every vector."""
        return self._each(torch.clone)

    def versions(self) -> tuple[int, ...]:
        """Return how often torch has written into each vector; it does not count that in inference mode."""
        return tuple([0 if x.is_inference() else x._version for x in self.vectors()])

    def with_buffers(self, buffers: Tensor | None) -> "State":
        """Return the same parameters and statistics with these buffers."""
        return self if buffers is self.buffers else replace(self, buffers=buffers)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "State":
        return State.of_tensors({name: change(x) for name, x in self.tensors().items()})

    @classmethod
    def expect(cls, thing: Any, where: str, like: Tensor | None = None) -> "State":
        """Return `thing` if it is a state, with a model like `like`; raise ConfigError that names `where` otherwise."""
        if not isinstance(thing, cls):
            raise ConfigError(f"{where} must return a fedgbo.State, not {type(thing).__name__}")
        if not isinstance(thing.params, Tensor) or not all(isinstance(x, Tensor) for x in thing.stats.values()):
            raise ConfigError(f"{where} returned a state of {type(thing.params).__name__}; it takes torch tensors")
        if like is not None and thing.params.shape != like.shape:
            raise ConfigError(
                f"{where} returned a model of shape {tuple(thing.params.shape)}; it must be {tuple(like.shape)}"
            )
        return thing

    def not_finite(self) -> str | None:
        """Name the first vector with a NaN or an infinity in it, if there is one."""
        for name, tensor in self.tensors().items():
            # A finite sum has finite terms, and is found six times as fast; finite terms may have an infinite sum
            if not math.isfinite(tensor.sum()) and not bool(torch.isfinite(tensor).all()):
                return name
        return None
