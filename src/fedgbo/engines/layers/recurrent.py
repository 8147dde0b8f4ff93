"""What the GRU and the LSTM have in common: when the C loops over time apply, and weights and states in their width.

The loops work on whole vectors. A layer of another width gets units whose weights and state are zero: they stay zero.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.native import library

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
