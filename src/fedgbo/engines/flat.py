"""A torch module seen as a function of one flat vector: the only place with autograd."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term
from fedgbo.engines.layers.accelerate import accelerate


class FlatModel:
    """The module's parameters and their gradients are views into two vectors, in the order of `parameters()`."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.module = accelerate(module)
        self.loss = loss
        parameters = list(module.parameters())
        _check_parameters(module, parameters)
        self.params = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.grad = torch.zeros_like(self.params)
        start = 0
        for p in parameters:
            end = start + p.numel()
            p.data = self.params[start:end].view(p.shape)
            if p.requires_grad:
                p.grad = self.grad[start:end].view(p.shape)
            start = end
        self._hidden: Tensor | None = None

    def gradient(
        self, params: Tensor, batch: tuple[Tensor, Tensor], terms: Sequence[Term] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient at `params` of the loss, plus the terms on the hidden layer, and that loss."""
        self.params.copy_(params)
        self.grad.zero_()
        loss = self.loss(self.module(batch[0]), batch[1])
        for term in terms:
            if term.needs_hidden and self._hidden is not None:
                loss = loss + term.loss(self._hidden)
        loss.backward()  # type: ignore[no-untyped-call]
        self._hidden = None
        return self.grad.clone(), loss.detach()

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return the module's outputs at `params`, as in evaluation."""
        self.params.copy_(params)
        self.module.eval()
        with torch.no_grad():
            outputs: Tensor = self.module(inputs)
        self.module.train()
        return outputs

    def watch_hidden(self, inputs: Tensor) -> None:
        """From now on keep the input of the last layer, the activations that FedMAX's term is about."""
        last = _last_linear(self.module, inputs)
        last.register_forward_pre_hook(self._keep_hidden)

    def _keep_hidden(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._hidden = args[0]


def _check_parameters(module: nn.Module, parameters: list[nn.Parameter]) -> None:
    if not any(p.requires_grad for p in parameters):
        raise ConfigError(f"the model ({type(module).__name__}) has no parameters to train")
    kinds = {p.dtype for p in parameters}
    if len(kinds) > 1 or not parameters[0].is_floating_point():
        names = ", ".join(sorted(str(kind) for kind in kinds))
        raise ConfigError(f"the model's parameters must all be of one floating type, not {names}")
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False):
            raise ConfigError(
                f"layer '{name}' ({type(layer).__name__}) keeps running statistics, which are not parameters and would "
                "not be averaged over clients; use nn.GroupNorm, or pass track_running_stats=False"
            )


def _last_linear(module: nn.Module, inputs: Tensor) -> nn.Linear:
    """Find the Linear that makes the output, by running the module once."""
    ran: list[nn.Module] = []
    leaves = [layer for layer in module.modules() if next(layer.children(), None) is None]
    hooks = [
        leaf.register_forward_hook(lambda layer, *_: ran.append(layer))
        for leaf in leaves
        if next(leaf.parameters(), None) is not None
    ]
    try:
        with torch.no_grad():
            module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not ran or not isinstance(ran[-1], nn.Linear):
        last = type(ran[-1]).__name__ if ran else "no layer with parameters"
        raise ConfigError(
            "FedMAX's entropy term takes the activations that go into the model's last layer, which must be nn.Linear; "
            f"here it is {last}. End the model with an nn.Linear, or use another algorithm"
        )
    if len(ran) < 2:
        raise ConfigError(
            "FedMAX's entropy term needs a hidden layer, and this model has only its output layer; "
            "add a hidden layer, or use another algorithm"
        )
    return ran[-1]
