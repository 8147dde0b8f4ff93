"""Layers that compute what torch's do, faster on one core: chosen by layer type, never by task."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.engines.layers.conv import FastConv2d, FastMaxPool2d
from fedgbo.engines.layers.plan import is_changed
from fedgbo.engines.layers.recurrent import FastGRU, FastLSTM, supports
from fedgbo.native import by_onednn, product, slow_mkl

ROWS = 1024  # samples, or places of its sequences, of a large minibatch
WORTH_PYTHON = 3 << 20  # multiply-adds of a layer by oneDNN, which takes about 35 µs of Python forwards and backwards


class FastAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention of a sequence with itself, in training; anything else is left to nn.MultiheadAttention.

    Its three projections are one product forwards and backwards. In torch's the backward pass fills three tensors with
    zeros, adds them up, and moves the batch to the second dimension and back: more work than the attention itself.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, L, E) for (B, L, E), or (L, B, E) for (L, B, E), and no weights."""
        itself = isinstance(query, Tensor) and query is key is value and query.ndim == 3
        plain = not need_weights and key_padding_mask is None and is_causal == (attn_mask is not None)
        if not itself or not plain or not self.training or query.shape[-1] != self.embed_dim:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        projected = linear(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (self._by_head(part) for part in projected.chunk(3, -1))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        out = (out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)).flatten(2)
        return linear(out, self.out_proj.weight, self.out_proj.bias), None

    def _by_head(self, x: Tensor) -> Tensor:
        """Return (B, heads, L, d)."""
        heads = x.view(*x.shape[:2], self.num_heads, -1)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    @staticmethod
    def supports(layer: nn.MultiheadAttention) -> bool:
        """Tell whether the layer is one of ours; dropout draws random numbers, which would not be torch's."""
        extras = layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn
        return layer._qkv_same_embed_dim and layer.dropout == 0 and not extras


class FastLinear(nn.Linear):
    """nn.Linear by oneDNN, for processors on which torch's own products are slow."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (..., O) for (..., I)."""
        return linear(input, self.weight, self.bias)

    @staticmethod
    def supports(layer: nn.Linear) -> bool:
        """Tell whether this is such a processor, and whether the product of a usual batch is worth it."""
        return layer.weight.dtype == torch.float32 and layer.weight.numel() >= WORTH_PYTHON // ROWS and slow_mkl()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias for x (..., I), weight (O, I) and bias (O), with gradients of any order."""
    given, size = (x, weight) if bias is None else (x, weight, bias), x.numel() * len(weight)
    if size < WORTH_PYTHON:
        return functional.linear(x, weight, bias)
    plain = type(x) is Tensor and not x.is_nested and x.layout == torch.strided and not torch.is_autocast_enabled("cpu")
    plain = plain and not torch._C._are_functorch_transforms_active()  # in which a Function like ours cannot be used
    if plain and x.ndim > 1 and x.shape[-1] == weight.shape[1] and by_onednn(size, *given):
        out: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], len(weight))
    return functional.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """x (N, I), weight (O, I), bias (O) -> (N, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, dw, db = ctx.needs_input_grad
        return (
            _times(grad, weight) if dx else None,
            _times(grad.t(), x) if dw else None,
            grad.sum(0) if db else None,
        )


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, with gradients if this backward pass is differentiated again."""
    return linear(a, b.t()) if torch.is_grad_enabled() else product(a, b)


Faster = dict[type[nn.Module], tuple[type[nn.Module], Callable[..., bool]]]
FASTER: Faster = {
    nn.Conv2d: (FastConv2d, FastConv2d.supports),
    nn.GRU: (FastGRU, supports),
    nn.Linear: (FastLinear, FastLinear.supports),
    nn.LSTM: (FastLSTM, supports),
    nn.MultiheadAttention: (FastAttention, FastAttention.supports),
    nn.MaxPool2d: (FastMaxPool2d, FastMaxPool2d.supports),
}
IMAGES = (FastConv2d, FastMaxPool2d)  # whose outputs are channels-last: a `view` fails on them


@dataclass(frozen=True)
class Level:
    """How much of a model is computed by code of ours."""

    layers: Faster  # and what takes their places
    whole: bool = False  # a whole network that is known, in one call of C code


STOCK = Level({})
LEVELS = (
    Level(FASTER, whole=True),
    Level(FASTER),
    Level({kind: own for kind, own in FASTER.items() if own[0] not in IMAGES}),
    STOCK,
)  # the fastest first; an engine takes the first that computes what STOCK computes


def accelerate(module: nn.Module, layers: Faster = FASTER) -> nn.Module:
    """Return a module that computes the same, faster on one core, with the very same parameters in the same order.

    Layers are replaced by their exact type: a user's subclass, and a layer with hooks or a `forward` of its own, stays
    as it is, and so does everything that is not known here. Names, and so the state dict, do not change; `module`
    itself neither. A `forward` that looks at more than the outputs of its layers may compute something else.
    """
    return _rebuilt(module, layers, {})


def replaced(module: nn.Module) -> list[str]:
    """Return the names of torch's layers that have a faster one in their place.

    >>> replaced(accelerate(nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 1))))
    ['LSTM']
    """
    there = {type(layer) for layer in module.modules()}
    return sorted(kind.__name__ for kind, (faster, _) in FASTER.items() if faster in there)


def _rebuilt(module: nn.Module, known: Faster, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """`done` keeps a layer that is used twice one layer."""
    if module in done:
        return done[module]
    faster, supports = known.get(type(module), (None, None))
    if faster is not None and supports is not None and supports(module) and not is_changed(module):
        new = _copy(module, faster)
    else:
        children = {
            name: None if child is None else _rebuilt(child, known, done) for name, child in module._modules.items()
        }
        if type(module) is nn.Sequential:
            _join_pool_and_relu(children)
            _join_conv_and_pool(children)
        new = module
        if any(children[name] is not child for name, child in module._modules.items()):
            new = _copy(module, type(module))
            new._modules.update(children)
    done[module] = new
    return new


def _copy(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Copy the module but not its tensors, possibly into a subclass of its type."""
    new = kind.__new__(kind)
    new.__dict__.update({k: copy.copy(v) if isinstance(v, dict) else v for k, v in module.__dict__.items()})
    return new


def _join_pool_and_relu(layers: dict[str, nn.Module | None]) -> None:
    """Let the pooling beside a ReLU do it as well, on a quarter of the values; the ReLU's place stays, empty."""
    for (first_name, first), (second_name, second) in pairwise(list(layers.items())):
        for pool, relu, name in ((first, second, second_name), (second, first, first_name)):
            if isinstance(pool, FastMaxPool2d) and not pool.relu and type(relu) is nn.ReLU and not is_changed(relu):
                joined = _copy(pool, FastMaxPool2d)
                joined.__dict__["relu"] = True
                layers[first_name if pool is first else second_name] = joined
                layers[name] = nn.Identity()


def _join_conv_and_pool(layers: dict[str, nn.Module | None]) -> None:
    """Let a convolution do the pooling that follows it; the pooling's place stays, empty."""
    there = [(name, layer) for name, layer in layers.items() if layer is not None and type(layer) is not nn.Identity]
    for (conv_name, conv), (pool_name, pool) in pairwise(there):
        if isinstance(conv, FastConv2d) and isinstance(pool, FastMaxPool2d):
            joined = _copy(conv, FastConv2d)
            joined.__dict__.update(pooled=True, relu=pool.relu)
            layers[conv_name], layers[pool_name] = joined, nn.Identity()
