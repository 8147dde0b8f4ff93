"""Convolutions on one core: channels-last, and the first one, on few channels, as one matrix product."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

FEW = 4  # input channels up to which a product of patches beats oneDNN, whose vectors run along the channels
LARGEST = 1 << 23  # patch numbers worth holding until the way back: 32 MB in float32


class FastConv2d(nn.Conv2d):
    """nn.Conv2d whose output lies channels-last in memory, as the next convolution and the pooling like it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, O, H', W') for (B, C, H, W)."""
        if self._as_product(input):
            out: Tensor = _Patches.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return out
        if not input.is_cpu or input.ndim != 4:
            return super().forward(input)
        weight = self.weight.contiguous(memory_format=torch.channels_last)
        x = input.contiguous(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def _as_product(self, x: Tensor) -> bool:
        """Only worth it in training, where the patches serve twice, and for a layer at the input, that ends there."""
        if not torch.is_grad_enabled() or x.requires_grad or not x.is_cpu or x.ndim != 4 or self.in_channels > FEW:
            return False
        if self.stride != (1, 1) or self.padding != (0, 0) or self.dilation != (1, 1) or self.groups != 1:
            return False
        depth = self.in_channels * self.kernel_size[0] * self.kernel_size[1]
        return x.shape[1] == self.in_channels and depth * x[:, 0].numel() <= LARGEST and _fits(x, self.weight)

    @staticmethod
    def supports(layer: nn.Conv2d) -> bool:
        """Tell whether the layer is an ordinary convolution."""
        return layer.padding_mode == "zeros" and layer.groups == 1


def _fits(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == weight.dtype and all(size >= k for size, k in zip(x.shape[2:], weight.shape[2:], strict=True))


class _Patches(torch.autograd.Function):
    """out (B H' W', O) = patches^T (K + 1, B H' W')^T @ weights (K + 1, O), K = C kh kw, the last row for the bias.

    The row of ones spares a pass over the output for the bias, and one over its gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        B, C, H, W = x.shape
        O, _, kh, kw = weight.shape  # noqa: E741 - as in the docstring
        height, width = H - kh + 1, W - kw + 1
        rows = C * kh * kw
        patches = x.new_empty((rows + (bias is not None), B * height * width))
        b, c, y, z = x.stride()
        windows = x.as_strided((C, kh, kw, B, height, width), (c, y, z, b, y, z))
        patches[:rows].view(C, kh, kw, B, height, width).copy_(windows)
        columns = weight.reshape(O, rows).t()
        if bias is not None:
            patches[rows] = 1
            columns = torch.cat((columns, bias[None]))
        ctx.save_for_backward(patches)
        ctx.shape = weight.shape
        return (patches.t() @ columns).view(B, height, width, O).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor | None]:
        (patches,) = ctx.saved_tensors
        rows = ctx.shape.numel() // ctx.shape[0]
        both = patches @ grad.permute(0, 2, 3, 1).reshape(-1, ctx.shape[0])
        weight = both[:rows].t().reshape(ctx.shape)
        return None, weight, both[rows] if len(both) > rows else None
