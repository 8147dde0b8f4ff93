"""Functions for modules of your own: GroupNorm instead of BatchNorm, and the places of layers in the flat vector."""

import copy
import math

from torch import nn

from fedgbo.core import ConfigError


def group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of a module in which every BatchNorm is a GroupNorm with the same weights and biases.

    A layer has `groups` groups, or as many as divide both `groups` and its channels (Wu and He, Group Normalization,
    2018). GroupNorm normalises differently, so a trained model needs further training.

    >>> group_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    16
    """
    copied = copy.deepcopy(module)
    if isinstance(copied, nn.modules.batchnorm._BatchNorm):
        return _replaced(copied, groups)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, _replaced(child, groups))
    return copied


def _replaced(layer: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    new = nn.GroupNorm(math.gcd(groups, channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        new.weight, new.bias = layer.weight, layer.bias
    return new


def places(model: nn.Module, *layers: str | type[nn.Module]) -> list[tuple[int, int]]:
    """Return the ranges (begin, end) of layers in the flat vector; layers are given by name or by class.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    >>> places(model, "2"), places(model, nn.GroupNorm)
    ([(24, 34)], [(16, 24)])
    """
    modules = dict(model.named_modules())
    for layer in layers:
        if isinstance(layer, str) and layer not in modules:
            known = ", ".join(name for name in modules if name)
            raise ConfigError(f"the model has no layer '{layer}' (it has: {known})")
    chosen = {
        id(parameter)
        for name, module in modules.items()
        if any(name == layer if isinstance(layer, str) else isinstance(module, layer) for layer in layers)
        for parameter in module.parameters()
        if parameter.requires_grad
    }
    if not chosen:
        names = ", ".join(layer if isinstance(layer, str) else layer.__name__ for layer in layers)
        raise ConfigError(f"the model has no layer with trainable parameters that is {names}")
    found: list[tuple[int, int]] = []
    begin = 0
    for parameter in (p for p in model.parameters() if p.requires_grad):
        end = begin + parameter.numel()
        if id(parameter) in chosen:
            joined = bool(found) and found[-1][1] == begin
            found[-1:] = [(found[-1][0], end)] if joined else [*found[-1:], (begin, end)]
        begin = end
    return found
