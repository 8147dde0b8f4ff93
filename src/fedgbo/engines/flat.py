"""A torch module as a function of one flat vector: the only place with autograd."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedgbo.core import AffineStep, ConfigError, DataError, FedGBOError, Term
from fedgbo.data.tree import call
from fedgbo.engines.buffers import Buffers, changed_in_forward
from fedgbo.engines.generators import OwnGenerator
from fedgbo.engines.layers import LEVELS, Level, accelerate, replaced
from fedgbo.engines.layers.network import TERMS, Network, network_for
from fedgbo.engines.module import last_linear
from fedgbo.native import step_in_parts, step_in_place
from fedgbo.tasks.task import Batch, mean_of

FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError)  # of a user's model or loss


class FlatModel:
    """The module's trainable parameters as one vector, in the order of `parameters()`.

    Parameters of the vector's type are views into it. Others, such as bfloat16, are rounded copies of it: the vector is
    float32, or float64 if a parameter is, so that small steps are not lost. Frozen parameters are not part of it. The
    level says which of its layers are replaced by faster ones.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Any, Any], Any], level: Level = LEVELS[0]) -> None:
        module.train()
        self.original = module  # with the same parameters
        self.module = accelerate(module, level.layers)
        self._whole = level.whole
        self.loss = loss
        self._names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        places = {id(p): (own._parameters, key) for own in self.module.modules() for key, p in own._parameters.items()}
        self._owners = [places.get(id(p), ({"": p}, "")) for p in self._parameters]  # a module may hide parameters
        kind = _check_parameters(module, self._parameters)
        ends = accumulate(p.numel() for p in self._parameters)
        self._begins = list(zip([0, *ends], self._parameters, strict=False))  # where each begins in the vector
        self.params = torch.cat([p.detach().reshape(-1).to(kind) for p in self._parameters])
        self._views = all(p.dtype == kind for p in self._parameters)
        self.network: Network | None = None  # in C code
        self.generator: OwnGenerator | None = None  # of training; None: torch's process-wide one
        self._point()
        self._grad: Tensor | None = None  # as one vector, where the C code computed it
        self._hidden: Tensor | None = None
        self.buffers = Buffers(self.module)

    def load(self, params: Tensor) -> None:
        """Give the module these parameters."""
        self.params.copy_(params)
        self._round()

    def gradient(self, params: Tensor, batch: Batch, terms: Sequence[Term] = ()) -> tuple[Tensor, Tensor]:
        """Return the gradient at `params` of the loss, plus the terms on the hidden layer, and that loss."""
        self.load(params)
        loss = self.backward(batch, terms)
        return self.flat_gradient(params), loss

    def backward(self, batch: Batch, terms: Sequence[Term] = ()) -> Tensor:
        """Compute the gradients of the loss, plus the terms on the hidden layer; return that loss."""
        self._grad = None
        for p in self._parameters:
            p.grad = None
        if self.network is not None and self.network.takes(*batch):
            self._grad = torch.empty_like(self.params)
            with self.drawing():
                return self.network.gradient(self.params, batch, self._grad, terms)
        try:
            with self.drawing():
                loss = self._objective(call(self.module, batch[0]), batch[1], terms)
            loss.backward()  # type: ignore[no-untyped-call]
        except FedGBOError:
            raise
        except FAILURES as error:
            raise DataError(f"the model or its loss fails on a minibatch: {error}") from error
        return loss.detach()

    def drawing(self) -> AbstractContextManager[Any]:
        """Return a context in which training draws from the generator that it has to draw from."""
        return self.generator or nullcontext()

    def pure_gradient(self, params: Tensor, batch: Batch, terms: Sequence[Term] = ()) -> tuple[Tensor, Tensor]:
        """Return what `gradient` does, as a function that torch.func.vmap can transform: nothing is written."""
        inputs, targets = batch
        several = isinstance(inputs, tuple | list)
        args, names = (
            ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs) if several else (inputs,), {})
        )

        def objective(at: Tensor) -> Tensor:
            own = {
                name: at[begin : begin + p.numel()].view(p.shape).to(p.dtype)
                for name, (begin, p) in zip(self._names, self._begins, strict=True)
            }
            return self._objective(functional_call(self.module, own, args, names), targets, terms)

        gradient, loss = grad_and_value(objective)(params)
        return gradient, loss

    def _objective(self, outputs: Any, targets: Any, terms: Sequence[Term]) -> Tensor:
        """Return the loss plus the terms on the hidden layer, which the forward pass has kept."""
        loss, hidden, self._hidden = self.loss_of(outputs, targets), self._hidden, None
        for term in terms:
            if term.needs_hidden and hidden is not None:
                loss = loss + term.loss(hidden)
        return loss

    def loss_of(self, outputs: Any, targets: Any) -> Tensor:
        """Return the task's loss, mean over the batch."""
        return mean_of(self.loss, outputs, targets)

    def step(self, batch: Batch, terms: Sequence[Term], step: AffineStep) -> Tensor:
        """Take a step in place with the gradient of the batch; return the loss before it."""
        if self.network is not None and self.network.takes(*batch):
            with self.drawing():
                return self.network.step(self.params, batch, step, terms)
        loss = self.backward(batch, terms)
        self.take(step)
        return loss

    def take(self, step: AffineStep) -> None:
        """Take a step in place with the gradients that are there."""
        own = [(begin, p.grad) for begin, p in self._begins if p.grad is not None and not p.grad.is_sparse]
        if self._grad is not None or len(own) < len(self._begins) or not step_in_parts(step, self.params, own):
            for begin, part, grad in self._gradients():
                step_in_place(step, part, grad, begin)
        self._round()

    def release(self) -> Tensor:
        """Return the parameters without a copy; the model uses other memory from now on."""
        self.check_places()
        given = self.params
        self.params = torch.empty_like(given)
        self._point()
        return given

    def parts(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a vector for each parameter."""
        return list(torch.split(vector, [p.numel() for p in self._parameters]))

    def flat_gradient(self, params: Tensor) -> Tensor:
        """Return the gradients as one vector; raise if the module itself has changed the parameters from `params`."""
        self.check_values(params)
        if self._grad is not None:
            return self._grad.clone()
        return torch.cat([grad for _, _, grad in self._gradients()])

    def check_values(self, params: Tensor) -> None:
        """Raise if the module has changed its parameters from `params`, be it through `.data`, which torch allows."""
        self.check_places()
        for name, (begin, p) in zip(self._names, self._begins, strict=True) if not self._views else ():
            part = self.params[begin : begin + p.numel()].view(p.shape).to(p.dtype)
            if not bool(((p == part) | (p.isnan() & part.isnan())).all()):
                raise changed_in_forward("parameter", name)
        expected = params.to(self.params).expand_as(self.params)  # as `load` takes them
        if expected is self.params or torch.equal(self.params, expected):
            return
        differs = ~((self.params == expected) | (self.params.isnan() & expected.isnan()))
        for name, (begin, p) in zip(self._names, self._begins, strict=True):
            if differs[begin : begin + p.numel()].any():
                raise changed_in_forward("parameter", name)

    def check_places(self) -> None:
        """Raise if the module has given a parameter other memory, or put another one in its place."""
        first, size, known = self.params.data_ptr(), self.params.element_size(), self.params.is_cpu
        for name, (begin, p), (owner, key) in zip(self._names, self._begins, self._owners, strict=True):
            view = known and p.dtype == self.params.dtype and p.numel() > 0
            if (view and p.data_ptr() != first + begin * size) or owner.get(key) is not p:
                raise changed_in_forward("parameter", name)

    def outputs(self, params: Tensor, inputs: Any) -> Any:
        """Return the module's outputs at `params`, as in evaluation."""
        self.load(params)
        self.module.eval()
        try:
            with torch.no_grad():
                return call(self.module, inputs)
        finally:
            self.module.train()

    def specialise(self, inputs: Any, terms: Sequence[Term]) -> None:
        """Prepare for these objective terms and for inputs like these.

        A term on the hidden layer needs the input of the last layer. The C code for a whole network has FedMAX's term,
        but no other term on the hidden layer.
        """
        hidden = [term for term in terms if term.needs_hidden]
        known = all(type(term) in TERMS for term in hidden)
        if known and self._whole and self._views and isinstance(inputs, Tensor):
            self.network = network_for(self.original, inputs, self.loss)
        if hidden:
            last = self.module.get_submodule(last_linear(self.original, inputs))
            last.register_forward_pre_hook(self._keep_hidden, with_kwargs=True)
            if self.network is not None and not self.network.plan.ends_linear:
                self.network = None

    @property
    def kind(self) -> str:
        """Say how gradients are computed."""
        if self.network is not None:
            return "the whole network in one call of C code"
        if self.module is not self.original:
            return f"torch's autograd with faster layers instead of {', '.join(replaced(self.module))}"
        return "torch's autograd with torch's own layers"

    def _gradients(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield parts of the vector, each with its place before it, and its gradient, or zeros, after it."""
        if self._grad is not None:
            yield 0, self.params, self._grad
            return
        for begin, p in self._begins:
            part = self.params[begin : begin + p.numel()]
            yield begin, part, torch.zeros_like(part) if p.grad is None else _dense(p.grad).reshape(-1).to(part.dtype)

    def _point(self) -> None:
        """Make the module's parameters views into the vector where they are of its type."""
        for begin, p in self._begins:
            if p.dtype == self.params.dtype:
                p.data = self.params[begin : begin + p.numel()].view(p.shape)

    def _round(self) -> None:
        """Copy the vector into parameters of other types."""
        if self._views:
            return
        for begin, p in self._begins:
            if p.dtype != self.params.dtype:
                p.data.copy_(self.params[begin : begin + p.numel()].view(p.shape))

    def _keep_hidden(self, layer: nn.Module, args: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        self._hidden = args[0] if args else given["input"]


def input_type(module: nn.Module) -> torch.dtype:
    """Return the type of the module's first floating parameter, in which it gets numbers as inputs."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _check_parameters(module: nn.Module, parameters: list[nn.Parameter]) -> torch.dtype:
    """Return the type of the flat vector; raise if there is nothing to train, or something that cannot be."""
    if not parameters:
        raise ConfigError(f"the model ({type(module).__name__}) has no parameters to train")
    kinds = {p.dtype for p in parameters}
    if odd := sorted(str(kind) for kind in kinds if not kind.is_floating_point):
        raise ConfigError(f"the model's trainable parameters must be of floating types, not {', '.join(odd)}")
    return torch.float64 if torch.float64 in kinds else torch.float32
