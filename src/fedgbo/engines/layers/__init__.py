"""Layers that compute what torch's do, faster on one core: chosen by layer type, never by task."""

import copy
from collections.abc import Callable
from itertools import pairwise

from torch import nn

from fedgbo.engines.layers.attention import FastAttention
from fedgbo.engines.layers.conv import FastConv2d, FastMaxPool2d
from fedgbo.engines.layers.gru import FastGRU
from fedgbo.engines.layers.lstm import FastLSTM
from fedgbo.engines.layers.network import is_changed
from fedgbo.engines.layers.recurrent import supports

FASTER: dict[type[nn.Module], tuple[type[nn.Module], Callable[..., bool]]] = {
    nn.Conv2d: (FastConv2d, FastConv2d.supports),
    nn.GRU: (FastGRU, supports),
    nn.LSTM: (FastLSTM, supports),
    nn.MultiheadAttention: (FastAttention, FastAttention.supports),
    nn.MaxPool2d: (FastMaxPool2d, FastMaxPool2d.supports),
}


def accelerate(module: nn.Module) -> nn.Module:
    """Return a module that computes the same, faster on one core, with the very same parameters in the same order.

    Layers are replaced by their exact type: a user's subclass, and a layer with hooks or a `forward` of its own, stays
    as it is, and so does everything that is not known here. Names, and so the state dict, do not change; `module`
    itself neither.
    """
    return _rebuilt(module, {})


def replaced(module: nn.Module) -> list[str]:
    """Return the names of torch's layers that have a faster one in their place.

    >>> replaced(accelerate(nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 1))))
    ['LSTM']
    """
    there = {type(layer) for layer in module.modules()}
    return sorted(kind.__name__ for kind, (faster, _) in FASTER.items() if faster in there)


def _rebuilt(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """`done` keeps a layer that is used twice one layer."""
    if module in done:
        return done[module]
    faster, supports = FASTER.get(type(module), (None, None))
    if faster is not None and supports is not None and supports(module) and not is_changed(module):
        new = _copy(module, faster)
    else:
        children = {name: None if child is None else _rebuilt(child, done) for name, child in module._modules.items()}
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
