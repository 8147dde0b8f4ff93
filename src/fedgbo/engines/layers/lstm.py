"""LSTM with the loops over time in C (native/lstm.c), in float32.

What goes into a time step, z = (x, h, 1), lies together in memory, and so do the weights of x and h and the biases. A
time step is then one product and the gates, and the gradient of all weights is one product over all time steps. Other
types, and machines without a compiler, use nn.LSTM itself; results are equal up to rounding.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedgbo.engines.layers.recurrent import rounded, start_of, takes, weights_of
from fedgbo.native import library


class FastLSTM(nn.LSTM):
    """nn.LSTM in one direction, without dropout and projections; anything else is left to nn.LSTM."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the last layer's hidden states of all time steps, and all layers' last hidden and cell states."""
        if not takes(self, input, () if hx is None else hx):
            return super().forward(input, hx)
        x, H = input.transpose(0, 1) if self.batch_first else input, self.hidden_size
        hidden, cells = [], []
        for layer in range(self.num_layers):
            starts = [start_of(self, layer, x, state) for state in hx or (None, None)]
            x, cell = _Layer.apply(x, *starts, *weights_of(self, layer))  # type: ignore[no-untyped-call]
            x = x[..., :H]
            hidden.append(x[-1])
            cells.append(cell[..., :H])
        return x.transpose(0, 1) if self.batch_first else x, (torch.stack(hidden), torch.stack(cells))


class _Layer(torch.autograd.Function):
    """x (T, B, I), first states (B, H) -> hidden states (T, B, H), last cell (B, H)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, Tensor]:
        (T, B, I), H = x.shape, h.shape[1]  # noqa: E741 - as in the C file
        weight = torch.cat((w_ih, w_hh, (b_ih + b_hh)[:, None]), 1)
        z, cells, gates = x.new_empty(T + 1, B, I + H + 1), x.new_empty(T + 1, B, H), x.new_empty(T, B, 4 * H)
        z[:T, :, :I], z[0, :, I:-1], z[..., -1], cells[0] = x, h, 1, c
        room = torch.empty_like(weight)
        addresses = [tensor.data_ptr() for tensor in (weight, room, z, cells, gates)]
        library().fedgbo_lstm_forward(T, B, I, H, *addresses)  # type: ignore[union-attr]
        ctx.save_for_backward(weight, z, cells, gates)
        return z[1:, :, I:-1], cells[T].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        weight, z, cells, gates = ctx.saved_tensors
        T, B, H = grad.shape
        I = z.shape[2] - H - 1  # noqa: E741
        skipped = I if ctx.needs_input_grad[0] else 0
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        delta, dc = torch.empty_like(gates), grad_c.clone(memory_format=torch.contiguous_format)
        dz = grad.new_empty(T + 1, B, rounded(skipped + H, 1))
        dz[T] = 0
        room = grad.new_empty(4 * H * rounded(skipped + H, 2))
        addresses = [tensor.data_ptr() for tensor in (weight, room, cells, gates, grad)]
        written = [tensor.data_ptr() for tensor in (delta, dz, dc)]
        backward = library().fedgbo_lstm_backward  # type: ignore[union-attr]
        backward(T, B, I, H, skipped, *addresses, *grad.stride()[:2], *written)
        dw = delta.view(T * B, 4 * H).t() @ z[:T].view(T * B, -1)
        dx = dz[:T, :, :I] if skipped else None
        return dx, dz[0, :, skipped : skipped + H], dc, dw[:, :I], dw[:, I:-1], dw[:, -1], dw[:, -1]
