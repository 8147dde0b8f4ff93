"""Where layers are in the flat vector of a model's parameters, for algorithms whose clients keep some of them."""

from torch import nn

from fedgbo.core import ConfigError


def places(model: nn.Module, *layers: str | type[nn.Module]) -> list[tuple[int, int]]:
    """Return (begin, end) of the trainable parameters of layers, named or of some class, in the model's order.

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
        raise ConfigError(f"no layer of the model that has trainable parameters is among {layers}")
    found: list[tuple[int, int]] = []
    begin = 0
    for parameter in (p for p in model.parameters() if p.requires_grad):
        end = begin + parameter.numel()
        if id(parameter) in chosen:
            joined = bool(found) and found[-1][1] == begin
            found[-1:] = [(found[-1][0], end)] if joined else [*found[-1:], (begin, end)]
        begin = end
    return found
