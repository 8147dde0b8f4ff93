"""A torch module seen as a function of one flat vector: the only place with autograd."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term
from fedgbo.engines.fixed import FixedStep
from fedgbo.engines.layers.accelerate import accelerate
from fedgbo.engines.layers.stack import StackRunner, runner_for


class FlatModel:
    """The module's parameters are views into one vector, in the order of `parameters()`."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.original = module  # with the same parameters
        self.module = accelerate(module)
        self.loss = loss
        parameters = list(module.parameters())
        _check_parameters(module, parameters)
        self.params = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._parameters = parameters
        self._runner: StackRunner | None = None
        self._point()
        self._grad: Tensor | None = None  # as one vector, where a runner computed it
        self._hidden: Tensor | None = None

    def gradient(
        self, params: Tensor, batch: tuple[Tensor, Tensor], terms: Sequence[Term] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient at `params` of the loss, plus the terms on the hidden layer, and that loss."""
        self.params.copy_(params)
        loss = self.backward(batch, terms)
        return self.flat_gradient(), loss

    def backward(self, batch: tuple[Tensor, Tensor], terms: Sequence[Term] = ()) -> Tensor:
        """Compute the gradients of the loss, plus the terms on the hidden layer; return that loss."""
        self._grad = None
        for p in self._parameters:
            p.grad = None
        if self._runner is not None and self._runner.takes(*batch):
            self._grad = torch.empty_like(self.params)
            return self._runner.gradient(self.params, *batch, self._grad)
        loss = self.loss(self.module(batch[0]), batch[1])
        for term in terms:
            if term.needs_hidden and self._hidden is not None:
                loss = loss + term.loss(self._hidden)
        loss.backward()  # type: ignore[no-untyped-call]
        self._hidden = None
        return loss.detach()

    def step(self, batch: tuple[Tensor, Tensor], terms: Sequence[Term], step: FixedStep) -> Tensor:
        """Take a step in place with the gradient of the batch; return the loss before it."""
        if self._runner is not None and self._runner.takes(*batch):
            return self._runner.step(self.params, *batch, step)
        loss = self.backward(batch, terms)
        self.take(step)
        return loss

    def take(self, step: FixedStep) -> None:
        """Take a step in place with the gradients that are there."""
        for begin, p, grad in self.gradients():
            step.take(p, grad, begin)

    def release(self) -> Tensor:
        """Hand the parameters over, without a copy, and work on other memory from now on."""
        given = self.params
        self.params = torch.empty_like(given)
        self._point()
        return given

    def gradients(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield parameters, each with its place in the flat vector before it, and its gradient, or zeros, after it."""
        if self._grad is not None:
            yield 0, self.params, self._grad
            return
        begin = 0
        for p in self._parameters:
            yield begin, p.detach(), torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
            begin += p.numel()

    def flat_gradient(self) -> Tensor:
        """Return the gradients as one vector."""
        if self._grad is not None:
            return self._grad.clone()
        return torch.cat([grad.reshape(-1) for _, _, grad in self.gradients()])

    def _point(self) -> None:
        """Let the module compute with `params`."""
        begin = 0
        for p in self._parameters:
            p.data = self.params[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return the module's outputs at `params`, as in evaluation."""
        self.params.copy_(params)
        self.module.eval()
        with torch.no_grad():
            outputs: Tensor = self.module(inputs)
        self.module.train()
        return outputs

    def specialise(self, inputs: Tensor, terms: Sequence[Term]) -> None:
        """Prepare for these objective terms, and for inputs like these: a whole network in one call, if that is known.

        A term on the hidden layer keeps the input of the last layer, the activations that FedMAX's term is about.
        """
        if any(term.needs_hidden for term in terms):
            _last_linear(self.module, inputs).register_forward_pre_hook(self._keep_hidden)
        elif self.loss is functional.cross_entropy:
            self._runner = runner_for(self.original, inputs)

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
