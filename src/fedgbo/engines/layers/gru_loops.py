"""The loop over time of one GRU layer, forward and back, in two kinds that agree to rounding.

    r = sigmoid(x_r + W_r h), z = sigmoid(x_z + W_z h), q = W_n h + b_n, n = tanh(x_n + r q), h' = n + z (h - n)

Shapes: gates (T, B, 3H), projections x_r, x_z, x_n that become r, z, n; inner (T, B, H), the q; hidden (T + 1, B, H),
of which hidden[0] is given; delta (T, B, 4H), the gradients of q and of the sums under r, z and n.
"""

import ctypes
from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Loops(ABC):
    """Fills the tensors it is given."""

    @abstractmethod
    def forward(self, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Fill gates, inner and hidden; weight (3H, H) is of r, z, n, bias (4H) of r, z, n and b_n in r's product."""

    @abstractmethod
    def backward(
        self, grad: Tensor, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, delta: Tensor
    ) -> None:
        """Fill delta, from the gradient (T, B, H) of all hidden states."""


class NativeLoops(Loops):
    """The C loops, float32 only: a layer is one call, in which other threads run."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native
        self.lanes = int(native.fedgbo_lanes())

    def forward(self, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        """See the C file for the order of the packed weights."""
        T, B, H = inner.shape
        packed = weight.reshape(3, H // self.lanes, self.lanes, H).permute(1, 3, 0, 2).contiguous()
        addresses = [t.data_ptr() for t in (packed, bias, gates, inner, hidden)]
        self._native.fedgbo_gru_forward(T, B, H, *addresses)

    def backward(
        self, grad: Tensor, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, delta: Tensor
    ) -> None:
        """See the C file for the order of the packed weights."""
        T, B, H = inner.shape
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        rows = torch.cat((weight[2 * H :], weight[: 2 * H]))  # as in delta: n, r, z
        packed = rows.view(3 * H, H // (2 * self.lanes), 2 * self.lanes).transpose(0, 1).contiguous()
        carry = torch.zeros_like(inner[0])
        addresses = [t.data_ptr() for t in (packed, gates, inner, hidden, grad)]
        strides = grad.stride(0), grad.stride(1)
        self._native.fedgbo_gru_backward(T, B, H, *addresses, *strides, delta.data_ptr(), carry.data_ptr())


class TorchLoops(Loops):
    """The same in torch's operations, in place, for any floating type and without a compiler."""

    def forward(self, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Take a time step in seven operations."""
        H = inner.shape[2]
        gates += bias[: 3 * H]
        weight_rz, weight_n = weight[: 2 * H].t(), weight[2 * H :].t()
        for gate, q, h, after in zip(gates, inner, hidden[:-1], hidden[1:], strict=True):
            rz, n = gate[:, : 2 * H], gate[:, 2 * H :]
            torch.addmm(bias[3 * H :], h, weight_n, out=q)
            rz.addmm_(h, weight_rz).sigmoid_()
            n.addcmul_(rz[:, :H], q).tanh_()
            torch.lerp(n, h, rz[:, H:], out=after)

    def backward(
        self, grad: Tensor, gates: Tensor, inner: Tensor, hidden: Tensor, weight: Tensor, delta: Tensor
    ) -> None:
        """All that does not depend on the gradient is done for all time steps at once, before the loop."""
        H = inner.shape[2]
        r, z, n = gates.chunk(3, dim=2)
        by_n = (1 - z) * (1 - n * n)  # d n-sum / d h'
        by_r = r * (1 - r) * inner  # d r-sum / d n-sum
        by_z = (hidden[:-1] - n) * z * (1 - z)  # d z-sum / d h'
        rows = torch.cat((weight[2 * H :], weight[: 2 * H]))
        carry = torch.zeros_like(inner[0])
        for t in range(len(inner) - 1, -1, -1):
            dq, dr, dz, dn = delta[t].chunk(4, dim=1)
            carry += grad[t]
            torch.mul(carry, by_n[t], out=dn)
            torch.mul(dn, r[t], out=dq)
            torch.mul(dn, by_r[t], out=dr)
            torch.mul(carry, by_z[t], out=dz)
            carry = torch.addmm(carry.mul_(z[t]), delta[t, :, : 3 * H], rows)
