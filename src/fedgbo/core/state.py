"""What the server keeps, sends and receives: a model and some statistics, all flat vectors of the same length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError


@dataclass(frozen=True, eq=False)
class State:
    """A flat vector of parameters and, by name, flat vectors of statistics.

    Going down it holds the model x_t; coming up, the difference x_t - y that a client's training made. A difference
    is as large as a model, and its mean keeps the digits that the mean of models would round away.
    """

    params: Tensor  # (P,)
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # each (P,), or (1,) for one number

    @property
    def nbytes(self) -> int:
        """How many bytes it takes to send this."""
        return sum((x.nbytes for x in self.stats.values()), self.params.nbytes)

    def tensors(self) -> dict[str, Tensor]:
        """All vectors by name: `params`, then `stats.<name>` in the order of their names."""
        return {"params": self.params} | {f"stats.{name}": self.stats[name] for name in sorted(self.stats)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "State":
        """Undo `tensors`."""
        stats = {name.removeprefix("stats."): t for name, t in tensors.items() if name.startswith("stats.")}
        return cls(tensors["params"], stats)

    def to(self, dtype: torch.dtype) -> "State":
        """Round every vector to `dtype`."""
        if all(x.dtype == dtype for x in (self.params, *self.stats.values())):
            return self
        return State(self.params.to(dtype), {name: stat.to(dtype) for name, stat in self.stats.items()})

    def on(self, device: torch.device | str) -> "State":
        """Move every vector to `device`."""
        return State(self.params.to(device), {name: stat.to(device) for name, stat in self.stats.items()})

    def clone(self) -> "State":
        """Copy every vector, so that it is nothing but this."""
        return State(self.params.clone(), {name: stat.clone() for name, stat in self.stats.items()})

    @classmethod
    def expect(cls, thing: Any, where: str, like: Tensor | None = None) -> "State":
        """Return `thing` if it is a state, with a model like `like`; raise ConfigError that names `where` otherwise."""
        if not isinstance(thing, cls):
            raise ConfigError(f"{where} must return a fedgbo.State, not {type(thing).__name__}")
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
