"""GRU with only the recurrence in the loop over time.

The input projections of all time steps are one product, and so are their weight gradients. In between, a time step
needs one small product and the gates, by C code in float32 (native/gru.c). Other types, and machines without a
compiler, use nn.GRU itself; results are equal up to rounding.

    r = sigmoid(x_r + W_r h), z = sigmoid(x_z + W_z h), q = W_n h + b_n, n = tanh(x_n + r q), h' = n + z (h - n)

Shapes in the loops: gates (T, B, 3H), projections x_r, x_z, x_n that become r, z, n; inner (T, B, H), the q; hidden
(T + 1, B, H), of which hidden[0] is given; delta (T, B, 4H), the gradients of q and of the sums under r, z and n.
`forward` fills gates, inner and hidden; its weight (3H, H) is of r, z and n, its bias (4H) of r, z, n and of q.
`backward` fills delta from the gradient (T, B, H) of all hidden states. native/gru.c has the order of packed weights.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedgbo.engines.layers.recurrent import start_of, takes, weights_of
from fedgbo.native import library


class FastGRU(nn.GRU):
    """nn.GRU in one direction and without dropout; anything else is left to nn.GRU."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the last layer's hidden states of all time steps, and all layers' states of the last one."""
        if not takes(self, input, () if hx is None else (hx,)):
            return super().forward(input, hx)
        x, last = input.transpose(0, 1) if self.batch_first else input, []
        for layer in range(self.num_layers):
            start = start_of(self, layer, x, hx)
            x = _Layer.apply(x, start, *weights_of(self, layer))[..., : self.hidden_size]  # type: ignore[no-untyped-call]
            last.append(x[-1])
        return x.transpose(0, 1) if self.batch_first else x, torch.stack(last)


class _Layer(torch.autograd.Function):
    """x (T, B, I), first state (B, H) -> hidden states (T, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        T, B, _ = x.shape
        H = w_hh.shape[1]
        x = x.reshape(T * B, -1)
        bias = torch.cat((b_ih, b_hh[2 * H :]))  # b_n of the hidden state stays apart: r multiplies it
        bias[: 2 * H] += b_hh[: 2 * H]
        gates = (x @ w_ih.t()).view(T, B, 3 * H)
        hidden = x.new_empty(T + 1, B, H)
        hidden[0] = h
        inner = x.new_empty(T, B, H)
        NativeLoops().forward(gates, inner, hidden, w_hh, bias)
        ctx.save_for_backward(x, w_ih, w_hh, gates, inner, hidden)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh, gates, inner, hidden = ctx.saved_tensors
        T, B, H = inner.shape
        delta = x.new_empty(T, B, 4 * H)  # of the inner sum of n, and of the sums under r, z and n
        carry = NativeLoops().backward(grad, gates, inner, hidden, w_hh, delta)
        delta = delta.view(T * B, 4 * H)
        recurrent, projected = delta[:, : 3 * H], delta[:, H:]
        dw_hh = recurrent.t() @ hidden[:T].view(T * B, H)
        bias = delta.sum(0)
        return (
            (projected @ w_ih).view(T, B, -1) if ctx.needs_input_grad[0] else None,
            carry,
            projected.t() @ x,
            torch.cat((dw_hh[H:], dw_hh[:H])),
            bias[H:],
            torch.cat((bias[H : 3 * H], bias[:H])),
        )


class NativeLoops:
    """The loops over time in C, float32 only: a layer is one call, in which other threads run."""

    def __init__(self) -> None:
        self._native = cast(Any, library())
        self.lanes = int(self._native.fedgbo_lanes())

    def forward(self, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        T, B, H = inner.shape
        panels = weight.reshape(3, H // self.lanes, self.lanes, H).permute(1, 3, 0, 2).contiguous()
        addresses = [t.data_ptr() for t in (panels, bias, gates, inner, hidden)]
        self._native.fedgbo_gru_forward(T, B, H, *addresses)

    def backward(
        self, grad: Tensor, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, delta: Tensor
    ) -> Tensor:
        """Fill delta; return the gradient of the first state."""
        T, B, H = inner.shape
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        rows = torch.cat((weight[2 * H :], weight[: 2 * H]))  # as in delta: n, r, z
        panels = rows.view(3 * H, H // (2 * self.lanes), 2 * self.lanes).transpose(0, 1).contiguous()
        carry = torch.zeros_like(inner[0])
        addresses = [t.data_ptr() for t in (panels, gates, inner, hidden, grad)]
        strides = grad.stride(0), grad.stride(1)
        self._native.fedgbo_gru_backward(T, B, H, *addresses, *strides, delta.data_ptr(), carry.data_ptr())
        return carry
