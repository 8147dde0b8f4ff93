"""How uploads become one state: an exact mean, plain or weighted by samples; coordinate-wise median and trimmed mean.

A float64 sum depends on the order of its terms where it rounds. ExactSum therefore keeps what each addition rounds away
(Knuth's TwoSum finds it exactly) in a second float64. Together they hold 106 bits: the sum is exact as long as the
terms of a coordinate lie within a factor of 2^(83 - 2 log2 M) of each other for M float32 vectors (2^73 for 32
clients), and of 2^(54 - 2 log2 M) for float64 ones. Beyond that it may be off by M² · 1e-32 of its largest term. So
neither the order of clients nor the number of workers or processes changes a bit of the mean.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Aggregator, ConfigError, State, Upload
from fedgbo.native import TYPES, library

HELD = 32 * 2**20  # bytes of uploads that are added in one pass: several vectors cost little more than one


class ExactSum:
    """A sum of vectors, total + rest, exact unless the terms differ by more than 106 bits can hold."""

    def __init__(self, total: Tensor, rest: Tensor | None = None, home: torch.device | None = None) -> None:
        self.total = total  # (P,) float64
        self.rest = torch.zeros_like(total) if rest is None else rest  # (P,) float64
        self._home = home or total.device  # of the vectors

    @classmethod
    def like(cls, x: Tensor) -> "ExactSum":
        """Return an empty sum of vectors like this one; it is on the CPU where the device has no float64."""
        where = torch.device("cpu") if x.device.type == "mps" else x.device
        return cls(torch.zeros_like(x, dtype=torch.float64, device=where), home=x.device)

    def add(self, *vectors: Tensor) -> None:
        """Add vectors of one length and floating type, in one pass."""
        native = library() if self.total.is_cpu else None
        if native is None or any(x.dtype not in TYPES or x.dtype != vectors[0].dtype for x in vectors):
            for x in vectors:
                self._add(x.to(torch.float64))
            return
        vectors = tuple(x.contiguous() for x in vectors)
        addresses = (ctypes.c_void_p * len(vectors))(*(x.data_ptr() for x in vectors))
        add = getattr(native, f"fedgbo_add_{TYPES[vectors[0].dtype]}")
        add(self.total.numel(), len(vectors), addresses, self.total.data_ptr(), self.rest.data_ptr())

    def _add(self, x: Tensor) -> None:
        t = self.total + x
        z = t - self.total
        self.rest += (self.total - (t - z)) + (x - z)
        self.total = t

    def mean(self, weight: int, dtype: torch.dtype) -> Tensor:
        """Return the sum over `weight`, computed in float64 and rounded to `dtype`."""
        native = library() if self.total.is_cpu and dtype in TYPES else None
        if native is None:
            return ((self.total + self.rest) / weight).to(self._home, dtype)
        mean = torch.empty_like(self.total, dtype=dtype)
        addresses = self.total.data_ptr(), self.rest.data_ptr()
        getattr(native, f"fedgbo_mean_{TYPES[dtype]}")(self.total.numel(), *addresses, weight, mean.data_ptr())
        return mean.to(self._home)


@dataclass(frozen=True)
class ExactMean(Aggregator):
    """The mean over clients or, with by="samples", over their samples: Σ n_i u_i / Σ n_i."""

    by: str = "clients"

    def __post_init__(self) -> None:
        if self.by not in ("clients", "samples"):
            raise ConfigError(f'weights must be "clients" or "samples", not {self.by!r}')

    def weight(self, upload: Upload) -> int:
        return upload.samples if self.by == "samples" else 1

    def combine(self, uploads: Iterable[Upload]) -> State:
        total = WeightedSum(self)
        for upload in uploads:
            total.add(upload)
        total.settle()
        return total.mean()


class WeightedSum:
    """Exact sums of every vector that clients upload, and the sum of the clients' weights.

    Uploads are held, up to a limit, and added several at a time, in one pass over the numbers.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.sums: dict[str, ExactSum] = {}
        self.weight = 0
        self.dtype = torch.float64
        self._aggregator = aggregator
        self._held: list[tuple[Upload, tuple[int, ...]]] = []
        self._nbytes = 0

    def add(self, upload: Upload) -> None:
        """Count an upload in; nobody may write into it afterwards."""
        self._held.append((upload, upload.state.versions()))
        self._nbytes += upload.state.nbytes
        if self._nbytes >= HELD:
            self.settle()

    def settle(self) -> None:
        """Add the uploads that are held, so that `sums` and `weight` are complete."""
        if not self._held:
            return
        for upload, versions in self._held:
            if upload.state.versions() != versions:
                raise ConfigError(
                    f"the vectors that client {upload.client} uploaded were changed afterwards; "
                    "client_update must return vectors of its own, not a buffer that it uses again"
                )
        vectors = check_alike([upload for upload, _ in self._held])
        if self.sums and self.sums.keys() != vectors[0].keys():
            raise ConfigError(_NAMES.format(", ".join(vectors[0]), ", ".join(self.sums)))
        weights = [self._aggregator.weight(upload) for upload, _ in self._held]
        for name, x in vectors[0].items():
            total = self.sums.setdefault(name, ExactSum.like(x))
            terms = [one[name].to(total.total.device) for one in vectors]
            if any(weight != 1 for weight in weights):  # exact for float32 vectors and weights below 2^29
                terms = [term.to(torch.float64) * weight for term, weight in zip(terms, weights, strict=True)]
            if total.total.shape != x.shape:
                raise ConfigError(_SHAPES.format(tuple(total.total.shape), tuple(x.shape)))
            total.add(*terms)
        self.weight += sum(weights)
        self.dtype = vectors[0]["params"].dtype
        self._held, self._nbytes = [], 0

    def mean(self) -> State:
        """Return the mean, rounded to the type of the uploads."""
        return State.of_tensors({name: exact.mean(self.weight, self.dtype) for name, exact in self.sums.items()})


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of every coordinate: robust against a minority of clients with arbitrary uploads.

    For an even number of clients it is the mean of the two middle values. All uploads are held in memory.
    """

    def combine(self, uploads: Iterable[Upload]) -> State:
        tensors = check_alike(list(uploads))
        return State.of_tensors({name: _median([one[name] for one in tensors]) for name in tensors[0]})


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of every coordinate without its smallest and largest values: robust against a share of the clients.

    Of M clients, floor(share M) values are left out at each end (Yin et al., 2018). All uploads are held in memory.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ConfigError(f"share must be at least 0 and less than 0.5, not {self.share!r}")

    def combine(self, uploads: Iterable[Upload]) -> State:
        tensors = check_alike(list(uploads))
        cut = int(self.share * len(tensors))
        means = {}
        for name, like in tensors[0].items():
            ordered = torch.stack([one[name] for one in tensors]).sort(dim=0).values
            means[name] = ordered[cut : len(tensors) - cut].to(torch.float64).mean(dim=0).to(like.dtype)
        return State.of_tensors(means)


def _median(vectors: Sequence[Tensor]) -> Tensor:
    ordered = torch.stack(list(vectors)).sort(dim=0).values
    low, high = ordered[(len(vectors) - 1) // 2], ordered[len(vectors) // 2]
    return low + (high - low) / 2


_NAMES = "a client uploads {}, and another one {}; client_update must return the same statistics on every client"
_SHAPES = (
    "clients upload vectors of shape {} and {}, which cannot be combined; client_update must return vectors as long as "
    "the model"
)


def check_alike(uploads: Sequence[Upload]) -> list[dict[str, Tensor]]:
    """Return the vectors of each upload by name; raise unless all clients upload the same names and shapes."""
    vectors = [upload.state.tensors() for upload in uploads]
    for other in vectors[1:]:
        if vectors[0].keys() != other.keys():
            raise ConfigError(_NAMES.format(", ".join(other), ", ".join(vectors[0])))
        for name, x in other.items():
            if x.shape != vectors[0][name].shape:
                raise ConfigError(_SHAPES.format(tuple(vectors[0][name].shape), tuple(x.shape)))
    return vectors


AGGREGATORS: dict[str, type[Aggregator]] = {"exactmean": ExactMean, "median": Median, "trimmedmean": TrimmedMean}
