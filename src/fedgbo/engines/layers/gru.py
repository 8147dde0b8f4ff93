"""GRU with only the recurrence in the loop over time.

The input projections of all time steps are one product, and so are their weight gradients; in between, a time step
needs one small product and the gates, done by the C loops in float32 and by torch's operations otherwise.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedgbo.engines.layers import gru_loops
from fedgbo.engines.layers.native import library


class FastGRU(nn.GRU):
    """nn.GRU of plain layers, started from zero; anything else goes the way of nn.GRU."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the last layer's hidden states of all time steps, and all layers' states of the last one."""
        if hx is not None or not self._takes(input):
            return super().forward(input, hx)
        x = input.transpose(0, 1) if self.batch_first else input
        last = []
        for layer in range(self.num_layers):
            weights = [getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            x = _Layer.apply(x, *weights)  # type: ignore[no-untyped-call]
            last.append(x[-1])
        return x.transpose(0, 1) if self.batch_first else x, torch.stack(last)

    def _takes(self, x: Tensor) -> bool:
        if not isinstance(x, Tensor) or x.ndim != 3 or not x.is_cpu or 0 in x.shape:  # a PackedSequence, one sample
            return False
        return x.shape[2] == self.input_size and x.dtype == self.weight_hh_l0.dtype

    @staticmethod
    def supports(layer: nn.GRU) -> bool:
        """Tell whether the layer is one of ours; dropout draws random numbers, which would not be nn.GRU's."""
        return not layer.bidirectional and layer.bias and layer.dropout == 0


class _Layer(torch.autograd.Function):
    """x (T, B, I) -> hidden states (T, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        T, B, _ = x.shape
        H = w_hh.shape[1]
        x = x.reshape(T * B, -1)
        bias = torch.cat((b_ih, b_hh[2 * H :]))  # b_n of the hidden state stays apart: r multiplies it
        bias[: 2 * H] += b_hh[: 2 * H]
        gates = (x @ w_ih.t()).view(T, B, 3 * H)
        hidden = x.new_empty(T + 1, B, H)
        hidden[0] = 0
        inner = x.new_empty(T, B, H)
        loops = _loops(w_hh)
        loops.forward(gates, inner, hidden, w_hh, bias)
        ctx.save_for_backward(x, w_ih, w_hh, gates, inner, hidden)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w_ih, w_hh, gates, inner, hidden = ctx.saved_tensors
        T, B, H = inner.shape
        delta = x.new_empty(T, B, 4 * H)  # of the inner sum of n, and of the sums under r, z and n
        _loops(w_hh).backward(grad, gates, inner, hidden, w_hh, delta)
        delta = delta.view(T * B, 4 * H)
        recurrent, projected = delta[:, : 3 * H], delta[:, H:]
        dw_hh = recurrent.t() @ hidden[:T].view(T * B, H)
        bias = delta.sum(0)
        return (
            (projected @ w_ih).view(T, B, -1) if ctx.needs_input_grad[0] else None,
            projected.t() @ x,
            torch.cat((dw_hh[H:], dw_hh[:H])),
            bias[H:],
            torch.cat((bias[H : 3 * H], bias[:H])),
        )


def _loops(weight: Tensor) -> gru_loops.Loops:
    native = library()
    if native is not None and weight.dtype == torch.float32:
        loops = gru_loops.NativeLoops(native)
        if weight.shape[1] % (2 * loops.lanes) == 0:
            return loops
    return gru_loops.TorchLoops()
