"""Local steps with fixed statistics, in place: what does not depend on the gradient is computed once a round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.engines.layers.native import library

KINDS = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True, eq=False)
class FixedStep:
    """y <- y - (offset + scale · g), elementwise, on flat vectors or parts of them."""

    offset: Tensor | None  # (P,); None for zero
    scale: Tensor | float  # (P,), or the same for all

    @classmethod
    def of(cls, optimiser: Optimiser, stats: Stats) -> "FixedStep | None":
        """Take the optimiser's word for it, if the class that wrote its `update` also wrote its `affine`."""
        writer = next(kind for kind in type(optimiser).__mro__ if "update" in vars(kind) or "affine" in vars(kind))
        parts = optimiser.affine(stats) if "update" in vars(writer) and "affine" in vars(writer) else None
        if parts is None:
            return None
        offset, scale = parts
        if not isinstance(offset, Tensor):
            if offset != 0:
                return None
            return cls(None, scale)
        return cls(offset, scale)

    def addresses(self) -> tuple[int | None, int | None, float]:
        """Return offset, scale and rate as the C loops take them."""
        offset = None if self.offset is None else self.offset.data_ptr()
        return (offset, self.scale.data_ptr(), 0.0) if isinstance(self.scale, Tensor) else (offset, None, self.scale)

    def take(self, y: Tensor, grad: Tensor, begin: int = 0) -> None:
        """Step in place; `y` and `grad` are the numbers from `begin` on, and lie in order."""
        end = begin + y.numel()
        offset = None if self.offset is None else self.offset[begin:end]
        scale = self.scale[begin:end] if isinstance(self.scale, Tensor) else None
        native = library()
        if native is not None and y.is_cpu and y.dtype in KINDS:
            rate = 0.0 if isinstance(self.scale, Tensor) else self.scale
            addresses = [None if part is None else part.data_ptr() for part in (y, grad, offset, scale)]
            getattr(native, f"fedgbo_step_{KINDS[y.dtype]}")(y.numel(), *addresses, rate)
            return
        y, grad = y.view(-1), grad.reshape(-1)
        if offset is not None:
            y.sub_(offset)
        if isinstance(self.scale, Tensor):
            y.addcmul_(self.scale[begin:end], grad, value=-1)
        else:
            y.add_(grad, alpha=-self.scale)
