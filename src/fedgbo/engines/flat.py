"""A torch module as a function of one flat vector: the only place with autograd. Also checks that it fits the data."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineStep, ConfigError, DataError, Term
from fedgbo.engines.layers import accelerate
from fedgbo.engines.layers.network import Network, network_for
from fedgbo.native import step_in_place
from fedgbo.tasks.task import Task


class FlatModel:
    """The module's parameters are views into one vector, in the order of `parameters()`.

    With `fast`, layers that are known are replaced by faster ones, and a stack of such layers by one call of C code.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *, fast: bool = True) -> None:
        self.original = module  # with the same parameters
        self.module = accelerate(module) if fast else module
        self._fast = fast
        self.loss = loss
        parameters = list(module.parameters())
        _check_parameters(module, parameters)
        self.params = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._parameters = parameters
        self.network: Network | None = None  # in C code
        self._point()
        self._grad: Tensor | None = None  # as one vector, where the C code computed it
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
        if self.network is not None and self.network.takes(*batch):
            self._grad = torch.empty_like(self.params)
            return self.network.gradient(self.params, *batch, self._grad)
        loss = self.loss(self.module(batch[0]), batch[1])
        for term in terms:
            if term.needs_hidden and self._hidden is not None:
                loss = loss + term.loss(self._hidden)
        loss.backward()  # type: ignore[no-untyped-call]
        self._hidden = None
        return loss.detach()

    def step(self, batch: tuple[Tensor, Tensor], terms: Sequence[Term], step: AffineStep) -> Tensor:
        """Take a step in place with the gradient of the batch; return the loss before it."""
        if self.network is not None and self.network.takes(*batch):
            return self.network.step(self.params, *batch, step)
        loss = self.backward(batch, terms)
        self.take(step)
        return loss

    def take(self, step: AffineStep) -> None:
        """Take a step in place with the gradients that are there."""
        for begin, p, grad in self.gradients():
            step_in_place(step, p, grad, begin)

    def release(self) -> Tensor:
        """Return the parameters without a copy; the model uses other memory from now on."""
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
        """Make the module's parameters views into `params`."""
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
        """Prepare for these objective terms and for inputs like these.

        A term on the hidden layer needs the input of the last layer. Without one, a network that is a stack of known
        layers is computed by one call of C code.
        """
        if any(term.needs_hidden for term in terms):
            _last_linear(self.module, inputs).register_forward_pre_hook(self._keep_hidden)
        elif self._fast:
            self.network = network_for(self.original, inputs, self.loss)

    @property
    def kind(self) -> str:
        """Say how gradients are computed."""
        if self.network is not None:
            return "the whole network in one call of C code"
        if self.module is not self.original:
            return "torch's autograd with faster layers in the place of known ones"
        return "torch's autograd with torch's own layers"

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


def check_fit(model: FlatModel, task: Task, inputs: Tensor, targets: Tensor) -> None:
    """Raise unless the model takes these inputs, and its outputs fit the targets and the loss."""
    kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
    try:
        outputs = model.outputs(model.params.clone(), inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"the model fails on a batch of inputs ({kind}): {error}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(
            f"the model must return one row for each sample: {len(inputs)} samples went in, {shape} came out"
        )
    if task.loss is functional.cross_entropy and targets.ndim == 1:
        _check_classes(outputs, task)
    elif outputs.numel() == targets.numel() and outputs.shape != targets.shape:
        raise DataError(
            f"outputs of shape {tuple(outputs.shape)} would be broadcast against targets of shape "
            f"{tuple(targets.shape)}; make them the same shape"
        )
    try:
        loss = model.loss(outputs, targets)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"the loss fails on outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: "
            f"{error}"
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise DataError("the loss must return one number, the mean over the batch")


def _check_classes(outputs: Tensor, task: Task) -> None:
    if outputs.ndim != 2:
        raise DataError(
            f"the model must return (samples, classes) scores for cross-entropy, not shape {tuple(outputs.shape)}"
        )
    classes = outputs.shape[1]
    for where, samples in (("training", task.data.train), ("test", task.data.test)):
        labels = samples.label_range()
        if labels is None:
            raise DataError(
                f"the {where} targets are not whole numbers, which cross-entropy over classes needs; "
                "for regression give the task loss=torch.nn.functional.mse_loss"
            )
        if labels[0] < 0 or labels[1] >= classes:
            raise DataError(
                f"the {where} labels go from {labels[0]} to {labels[1]}, but the model has {classes} outputs; "
                f"labels must be 0 ... {classes - 1}"
            )
