"""Max-pooling of 2x2 squares, alone or together with the ReLU beside it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedgbo.engines.layers.native import library

KINDS = {torch.float32: "float", torch.float64: "double"}


def pool(x: Tensor, relu: bool) -> Tensor:
    """Return the maxima of 2x2 squares of (B, C, H, W), and ReLU of them: ReLU and maximum commute.

    Gradients follow torch's rule, to the first maximum of a square and to none that is not positive.
    """
    if library() is not None and x.is_cpu and x.ndim == 4 and x.dtype in KINDS and min(x.shape[2:]) > 1:
        pooled: Tensor = _Pool.apply(x, relu)  # type: ignore[no-untyped-call]
        return pooled
    pooled = functional.max_pool2d(x, 2)
    return functional.relu(pooled) if relu else pooled


class FastMaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d(2), with or without nn.ReLU after it."""

    relu = False

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, C, H // 2, W // 2)."""
        return pool(input, self.relu)

    @staticmethod
    def supports(layer: nn.MaxPool2d) -> bool:
        """Tell whether the layer takes the maxima of plain 2x2 squares."""
        two = all(size in (2, (2, 2)) for size in (layer.kernel_size, layer.stride))
        plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
        return two and plain and not layer.ceil_mode and not layer.return_indices


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, relu: bool) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        B, C, H, W = x.shape
        out = torch.empty((B, C, H // 2, W // 2), dtype=x.dtype, memory_format=torch.channels_last)
        choice = torch.empty((B, H // 2, W // 2, C), dtype=torch.uint8)
        loop = getattr(library(), f"fedgbo_pool_{KINDS[x.dtype]}_forward")
        loop(B, H, W, C, relu, x.data_ptr(), out.data_ptr(), choice.data_ptr())
        ctx.save_for_backward(choice)
        ctx.shape = x.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (choice,) = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=grad.dtype, memory_format=torch.channels_last)
        B, C, H, W = ctx.shape
        loop = getattr(library(), f"fedgbo_pool_{KINDS[grad.dtype]}_backward")
        loop(B, H, W, C, grad.data_ptr(), choice.data_ptr(), dx.data_ptr())
        return dx, None
