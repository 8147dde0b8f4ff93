"""Means of what clients send up: sums that are exact, so that no order of adding and no sharing out changes a bit.

A float64 sum depends on the order of its terms where it rounds. So what each addition rounds away (Knuth's TwoSum finds
it, exactly) is kept in a second float64. Together they hold 106 bits. That is the exact sum as long as the terms of a
coordinate lie within a factor of 2^(83 - 2 log2 M) of each other for M float32 vectors (2^73 for 32 clients), and of
2^(54 - 2 log2 M) for float64 ones. Beyond that it may be off by M² · 1e-32 of its largest term, which changes the mean
only if that is what decides how it is rounded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError
from fedgbo.core.state import State
from fedgbo.engines.layers.native import library

KINDS = {torch.float32: "float", torch.float64: "double"}
CHUNK = 32_768  # numbers at once on the CPU where there is no compiler: all that is needed for them stays in the cache
WORTH_LOADING = 5_000  # numbers from which the C loops pay for being built and loaded


@dataclass(eq=False)
class ExactSum:
    """A sum of vectors: total + rest."""

    total: Tensor  # (P,) float64
    rest: Tensor | None = None  # (P,) float64; None where nothing was rounded away

    def add(self, x: Tensor) -> None:
        """Add a vector of any floating type."""
        if self.rest is None:
            self.rest = torch.zeros_like(self.total)
        if x.shape != self.total.shape:
            raise ConfigError(
                f"clients send up vectors of shape {tuple(self.total.shape)} and {tuple(x.shape)}, which have no mean; "
                "client_update must return vectors as long as the model"
            )
        length, x = self.total.numel(), x.contiguous()
        loops = library() if x.is_cpu and x.dtype in KINDS and length >= WORTH_LOADING else None
        if loops is not None:
            add = getattr(loops, f"fedgbo_add_{KINDS[x.dtype]}")
            add(length, x.data_ptr(), self.total.data_ptr(), self.rest.data_ptr())
            return
        chunk = CHUNK if x.is_cpu else length
        for begin in range(0, length, chunk):
            part = slice(begin, begin + chunk)
            _two_sum(self.total[part], self.rest[part], x[part])

    def value(self) -> Tensor:
        """Return the sum, rounded once; this object is spent then."""
        return self.total if self.rest is None else self.total.add_(self.rest)


def _two_sum(total: Tensor, rest: Tensor, x: Tensor) -> None:
    """Add x to total in place, and what that rounds away to rest."""
    x = x.to(torch.float64)
    t = total + x
    z = t - total
    rest += (total - (t - z)) + (x - z)
    total.copy_(t)


class Mean:
    """A running mean of States, so that memory stays at two models in float64 however many clients there are."""

    def __init__(self) -> None:
        self.sums: dict[str, ExactSum] = {}

    def add(self, state: State) -> None:
        """Count `state` in."""
        for name, tensor in state.tensors().items():
            if name in self.sums:
                self.sums[name].add(tensor)
            else:
                self.sums[name] = ExactSum(tensor.to(torch.float64, copy=True))

    def value(self, count: int) -> State:
        """Return the mean of `count` states, in float64; this object is spent then."""
        return State.of_tensors({name: total.value().div_(count) for name, total in self.sums.items()})
