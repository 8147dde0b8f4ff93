"""Means of what clients send up: sums that are exact, so that no order of adding and no sharing out changes a bit.

A float64 sum depends on the order of its terms where it rounds. So what each addition rounds away (Knuth's TwoSum finds
it, exactly) is kept in a second float64. Together they hold 106 bits. That is the exact sum as long as the terms of a
coordinate lie within a factor of 2^(83 - 2 log2 M) of each other for M float32 vectors (2^73 for 32 clients), and of
2^(54 - 2 log2 M) for float64 ones. Beyond that it may be off by M² · 1e-32 of its largest term, which changes the mean
only if that is what decides how it is rounded.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.errors import ConfigError
from fedgbo.core.state import State
from fedgbo.engines.layers.native import library

KINDS = {torch.float32: "float", torch.float64: "double"}
CHUNK = 32_768  # numbers at once on the CPU where there is no compiler: all that is needed for them stays in the cache
WORTH_LOADING = 5_000  # numbers from which the C loops pay for being built and loaded
HELD = 32 * 2**20  # bytes that may wait to be added: several vectors in one pass cost little more than one


@dataclass(eq=False)
class ExactSum:
    """A sum of vectors: total + rest."""

    total: Tensor  # (P,) float64
    rest: Tensor | None = None  # (P,) float64; None where nothing was rounded away
    begun: bool = True  # else there is only room for it

    @classmethod
    def like(cls, x: Tensor) -> "ExactSum":
        """Return room for a sum of vectors like this one."""
        return cls(torch.empty_like(x, dtype=torch.float64), begun=False)

    def add(self, *vectors: Tensor) -> None:
        """Add vectors of any floating type, of one length."""
        if self.rest is None:
            self.rest = torch.zeros_like(self.total)
        self._pass(vectors, self.rest, 0)

    def value(self, *last: Tensor, count: int = 1) -> Tensor:
        """Add the last ones, and return the sum, rounded once, over `count`, in place: this object is spent then."""
        self._pass(last, self.rest, count)
        return self.total

    def _pass(self, vectors: Sequence[Tensor], rest: Tensor | None, divisor: int) -> None:
        """Go over the numbers once: add the vectors and, with a divisor, finish."""
        kinds, length = {x.dtype for x in vectors} or {torch.float64}, self.total.numel()
        native = library() if self.total.is_cpu and length >= WORTH_LOADING and len(kinds) == 1 else None
        if native is not None and (kind := KINDS.get(*kinds)) is not None:
            vectors = [x.contiguous() for x in vectors]
            addresses = (ctypes.c_void_p * len(vectors))(*(x.data_ptr() for x in vectors))
            place = None if rest is None else rest.data_ptr()
            add = getattr(native, f"fedgbo_add_{kind}")
            add(length, len(vectors), addresses, self.total.data_ptr(), place, self.begun, divisor)
        else:
            chunk = CHUNK if self.total.is_cpu else length
            for begin in range(0, length, chunk):
                part = slice(begin, begin + chunk)
                few = None if rest is None else rest[part]
                _add(self.total[part], few, [x[part] for x in vectors], self.begun, divisor)
        self.begun = True


def _add(total: Tensor, rest: Tensor | None, vectors: Sequence[Tensor], begun: bool, divisor: int) -> None:
    """What the C loops do: add vectors to a sum in place or, with a divisor, finish it in `total`."""
    if not begun:
        total.copy_(vectors[0])
        vectors = vectors[1:]
    left = torch.zeros_like(total) if rest is None else rest.clone() if divisor else rest
    for x in vectors:
        x = x.to(torch.float64)
        t = total + x
        z = t - total
        left += (total - (t - z)) + (x - z)
        total.copy_(t)
    if divisor:
        total.add_(left).div_(divisor)


def version(x: Tensor) -> int:
    """Return how often torch has written into a vector; it does not count where it was made in inference mode."""
    return 0 if x.is_inference() else x._version


class Mean:
    """A running mean of States.

    Memory stays at two models in float64, and a few that wait to be added, however many clients there are.
    """

    def __init__(self) -> None:
        self.sums: dict[str, ExactSum] = {}
        self._waiting: list[dict[str, tuple[Tensor, int]]] = []  # each with its version, which torch counts
        self._held = 0

    def add(self, state: State) -> None:
        """Count `state` in; it must not change afterwards."""
        tensors = state.tensors()
        for name, x in tensors.items():
            if name not in self.sums:
                self.sums[name] = ExactSum.like(x)
            elif x.shape != self.sums[name].total.shape:
                shape = tuple(self.sums[name].total.shape)
                raise ConfigError(
                    f"clients send up vectors of shape {shape} and {tuple(x.shape)}, which have no mean; "
                    "client_update must return vectors as long as the model"
                )
        self._waiting.append({name: (x, version(x)) for name, x in tensors.items()})
        self._held += state.nbytes
        if self._held >= HELD:
            self.settle()

    def settle(self) -> None:
        """Add those that wait, so that `sums` are complete."""
        for name, total in self.sums.items():
            if vectors := self._left(name):
                total.add(*vectors)
        self._waiting, self._held = [], 0

    def part(self, count: int, begin: int = 0, end: int | None = None) -> State:
        """Return the mean of `count` states, in float64: the numbers from `begin` to `end`."""
        piece = slice(begin, end)
        means = {}
        for name, whole in self.sums.items():
            total = whole.total[piece].clone() if whole.begun else torch.empty_like(whole.total[piece])
            exact = ExactSum(total, None if whole.rest is None else whole.rest[piece], whole.begun)
            means[name] = exact.value(*(x[piece] for x in self._left(name)), count=count)
        return State.of_tensors(means)

    def _left(self, name: str) -> list[Tensor]:
        left = [tensors[name] for tensors in self._waiting if name in tensors]
        if any(version(x) != before for x, before in left):
            raise ConfigError(
                f"the vector {name} that a client sent up was changed afterwards, before it was added to the others; "
                "client_update must return vectors of its own, not a buffer that it uses again"
            )
        return [x for x, _ in left]


@dataclass(frozen=True, eq=False)
class Average:
    """The mean of what `count` clients sent up, in float64: worked out when it is asked for, all of it or a part."""

    of: Mean
    count: int

    def part(self, begin: int = 0, end: int | None = None) -> State:
        """Return the numbers from `begin` to `end`."""
        return self.of.part(self.count, begin, end)
