"""Convolutions and 2x2 max-pooling on one core, channels-last.

The first convolution, on few channels, is computed by C code together with the pooling after it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedgbo.native import TYPES, library, slow_mkl

FEW = 4  # input channels up to which the C code beats oneDNN, whose vectors run along the channels
MANY = 3  # weights for each number of a batch, from which oneDNN's rearranging of weights costs more than a product


class FastConv2d(nn.Conv2d):
    """nn.Conv2d in the layout that is fastest for its sizes: channels-last, unless there are more weights than inputs.

    With `pooled`, 2x2 max-pooling follows in the same layer, with `relu` after that.
    """

    pooled = False
    relu = False
    always_last = False  # channels-last for all sizes, to see whether a model can do with it

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, O, H', W') for (B, C, H, W), or (B, O, H' // 2, W' // 2)."""
        if not self.pooled:
            return self._convolved(input)
        if not self._in_one(input):
            return pool(self._convolved(input), self.relu)
        out: Tensor = _Pooled.apply(input, self.weight, self.bias, self.relu)  # type: ignore[no-untyped-call]
        return out

    def _convolved(self, input: Tensor) -> Tensor:
        if not input.is_cpu or input.ndim != 4 or input.shape[1] != self.in_channels or 0 in input.shape:
            return super().forward(input)
        weights, numbers = self.weight.numel(), input.numel()
        last = weights < numbers or self.always_last
        if weights > MANY * numbers and not isinstance(self.padding, str) and library() and not slow_mkl() and not last:
            return self._by_product(input, self.padding)
        layout = torch.channels_last if last else torch.contiguous_format  # the weights are copied, too
        weight, x = self.weight.contiguous(memory_format=layout), input.contiguous(memory_format=layout)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def _by_product(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        """Convolve by one matrix product, whose gradients are products, too: weights are used as they lie in memory."""
        columns = functional.unfold(x, self.kernel_size, self.dilation, padding, self.stride)
        columns = columns.transpose(0, 1).flatten(1)  # (C kh kw, B H' W')
        out = self.weight.flatten(1) @ columns
        if self.bias is not None:
            out = out + self.bias[:, None]
        sizes = zip(x.shape[2:], self.kernel_size, self.dilation, padding, self.stride, strict=True)
        shape = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in sizes]
        return out.view(-1, len(x), *shape).transpose(0, 1).contiguous()

    def _in_one(self, x: Tensor) -> bool:
        """Return whether the C code applies: a plain convolution of float32 images that want no gradient."""
        native = library()
        if native is None or x.requires_grad or not x.is_cpu or x.ndim != 4 or x.dtype != torch.float32:
            return False
        if self.stride != (1, 1) or self.padding != (0, 0) or self.dilation != (1, 1) or self.groups != 1:
            return False
        larger = all(size > k for size, k in zip(x.shape[2:], self.kernel_size, strict=True))
        fits = x.shape[1] == self.in_channels <= FEW and x.dtype == self.weight.dtype
        return larger and fits and self.out_channels % (2 * native.fedgbo_lanes()) == 0

    @staticmethod
    def supports(layer: nn.Conv2d) -> bool:
        """Tell whether the layer is an ordinary convolution."""
        return layer.padding_mode == "zeros" and layer.groups == 1


class _Pooled(torch.autograd.Function):
    """Convolution, 2x2 maxima and ReLU in the C loops, which keep two rows of outputs at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        x = x.contiguous()
        B, C, H, W = x.shape
        O, _, kh, kw = weight.shape  # noqa: E741 - as in the C file
        height, width = H - kh + 1, W - kw + 1
        columns = weight.reshape(O, -1).t().contiguous()
        added = x.new_zeros(O) if bias is None else bias
        out = torch.empty((B, O, height // 2, width // 2), memory_format=torch.channels_last)
        choice = torch.empty((B, height // 2, width // 2, O), dtype=torch.uint8)
        rows = x.new_empty(2, width, O)
        addresses = [tensor.data_ptr() for tensor in (x, columns, added, out, choice, rows)]
        library().fedgbo_conv_forward(B, C, H, W, kh, kw, O, relu, *addresses)  # type: ignore[union-attr]
        ctx.save_for_backward(x, choice)
        ctx.shape, ctx.bias = weight.shape, bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor | None, None]:
        x, choice = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        B, C, H, W = x.shape
        O, _, kh, kw = ctx.shape  # noqa: E741
        columns, bias = x.new_zeros(C * kh * kw, O), x.new_zeros(O)
        rows, image = x.new_empty(2, W - kw + 1, O), x.new_empty(C * kh * kw + 1, O)
        addresses = [tensor.data_ptr() for tensor in (x, grad, choice, columns, bias, rows, image)]
        library().fedgbo_conv_backward(B, C, H, W, kh, kw, O, *addresses)  # type: ignore[union-attr]
        return None, columns.t().reshape(ctx.shape), bias if ctx.bias else None, None


def pool(x: Tensor, relu: bool) -> Tensor:
    """Return the maxima of 2x2 squares of (B, C, H, W), and ReLU of them: ReLU and maximum commute.

    Gradients follow torch's rule, to the first maximum of a square and to none that is not positive.
    """
    if library() is not None and x.is_cpu and x.ndim == 4 and x.dtype in TYPES and min(x.shape[2:]) > 1:
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
        loop = getattr(library(), f"fedgbo_pool_{TYPES[x.dtype]}_forward")
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
        loop = getattr(library(), f"fedgbo_pool_{TYPES[grad.dtype]}_backward")
        loop(B, H, W, C, grad.data_ptr(), choice.data_ptr(), dx.data_ptr())
        return dx, None
