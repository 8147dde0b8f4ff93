"""GRUs and LSTMs with their loops over time in C (native/gru.c, native/lstm.c), in float32.

Other types, and machines without a compiler, use nn.GRU and nn.LSTM themselves; results are equal up to rounding. The
loops work on whole vectors. A layer of another width gets units whose weights and state are zero: they stay zero.

GRU: the input projections of all time steps are one product, and so are their weight gradients. In between, a time step
needs one small product and the gates.

    r = sigmoid(x_r + W_r h), z = sigmoid(x_z + W_z h), q = W_n h + b_n, n = tanh(x_n + r q), h' = n + z (h - n)

Shapes in the loops: gates (T, B, 3H), projections x_r, x_z, x_n that become r, z, n; inner (T, B, H), the q; hidden
(T + 1, B, H), of which hidden[0] is given; delta (T, B, 4H), the gradients of q and of the sums under r, z and n.
`forward` fills gates, inner and hidden; its weight (3H, H) is of r, z and n, its bias (4H) of r, z, n and of q.
`backward` fills delta from the gradient (T, B, H) of all hidden states. native/gru.c has the order of packed weights.

LSTM: what goes into a time step, z = (x, h, 1), lies together in memory, and so do the weights of x and h and the
biases. A time step is then one product and the gates, and the gradient of all weights is one product over all steps.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedgbo.native import library, product

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def supports(layer: nn.RNNBase) -> bool:
    """Tell whether the layer is one of ours; dropout draws random numbers, which would not be torch's."""
    return not layer.bidirectional and layer.bias and layer.dropout == 0 and layer.proj_size == 0


def takes(layer: nn.RNNBase, x: Any, states: Sequence[Any]) -> bool:
    """Tell whether the C loops apply: float32, a whole batch in one tensor, and no states or ordinary ones."""
    if library() is None or not isinstance(x, Tensor) or x.ndim != 3 or not x.is_cpu or 0 in x.shape:
        return False
    if torch.is_autocast_enabled("cpu") or x.shape[2] != layer.input_size:
        return False
    shape = layer.num_layers, x.shape[0 if layer.batch_first else 1], layer.hidden_size
    if not all(isinstance(state, Tensor) and state.shape == shape for state in states):
        return False
    return all(own.dtype == torch.float32 for own in (x, *states, *layer.parameters()))


def weights_of(layer: nn.RNNBase, number: int) -> tuple[Tensor, ...]:
    """Return the weights (G H, I) and (G H, H) and the biases (G H) of a layer with G gates, H rounded up."""
    own = [getattr(layer, f"{name}_l{number}") for name in WEIGHTS]
    H, extra = layer.hidden_size, _extra(layer.hidden_size)
    if extra == 0:
        return tuple(own)
    w_ih, w_hh, b_ih, b_hh = (weight.unflatten(0, (-1, H)) for weight in own)
    wide = [functional.pad(w_ih, (0, 0, 0, extra)), functional.pad(w_hh, (0, extra, 0, extra))]
    wide += [functional.pad(bias, (0, extra)) for bias in (b_ih, b_hh)]
    return tuple(weight.flatten(0, 1) for weight in wide)


def start_of(layer: nn.RNNBase, number: int, x: Tensor, state: Tensor | None) -> Tensor:
    """Return the state (B, H) that a layer starts with, H rounded up, for inputs (T, B, I)."""
    extra = _extra(layer.hidden_size)
    if state is None:
        return x.new_zeros(x.shape[1], layer.hidden_size + extra)
    return functional.pad(state[number], (0, extra)) if extra else state[number]


def rounded(count: int, vectors: int) -> int:
    """Round up to a multiple of so many vectors of the C code."""
    lanes = vectors * int(library().fedgbo_lanes())  # type: ignore[union-attr]
    return -(-count // lanes) * lanes


def _extra(hidden: int) -> int:
    return rounded(hidden, 2) - hidden


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
            x = _GRULayer.apply(x, start, *weights_of(self, layer))[..., : self.hidden_size]  # type: ignore[no-untyped-call]
            last.append(x[-1])
        return x.transpose(0, 1) if self.batch_first else x, torch.stack(last)


class _GRULayer(torch.autograd.Function):
    """x (T, B, I), first state (B, H) -> hidden states (T, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        T, B, _ = x.shape
        H = w_hh.shape[1]
        x = x.reshape(T * B, -1)
        bias = torch.cat((b_ih, b_hh[2 * H :]))  # b_n of the hidden state stays apart: r multiplies it
        bias[: 2 * H] += b_hh[: 2 * H]
        gates = product(x, w_ih.t()).view(T, B, 3 * H)
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
        dw_hh = product(recurrent.t(), hidden[:T].view(T * B, H))
        bias = delta.sum(0)
        return (
            product(projected, w_ih).view(T, B, -1) if ctx.needs_input_grad[0] else None,
            carry,
            product(projected.t(), x),
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
            x, cell = _LSTMLayer.apply(x, *starts, *weights_of(self, layer))  # type: ignore[no-untyped-call]
            x = x[..., :H]
            hidden.append(x[-1])
            cells.append(cell[..., :H])
        return x.transpose(0, 1) if self.batch_first else x, (torch.stack(hidden), torch.stack(cells))


class _LSTMLayer(torch.autograd.Function):
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
        dw = product(delta.view(T * B, 4 * H).t(), z[:T].view(T * B, -1))
        dx = dz[:T, :, :I] if skipped else None
        return dx, dz[0, :, skipped : skipped + H], dc, dw[:, :I], dw[:, I:-1], dw[:, -1], dw[:, -1]
