"""A task: federated data, a model, a loss and a score, and how many clients and samples a step takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import ConfigError, DataError, whole
from fedgbo.data.federated import FederatedData
from fedgbo.data.samples import IGNORED

Batch = tuple[Any, Any]  # inputs and targets: tensors, or tuples, lists and mappings of tensors
Metric = Callable[[Any, Any], Any]
BUFFERS = ("average", "local")


def logits_of(outputs: Any) -> Tensor:
    """Return the scores in a model's outputs: the outputs themselves, or the `logits` of an output object."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise DataError(
            f"the model returns {type(outputs).__name__}; the default loss and accuracy take a tensor, or an object "
            "with `logits`. Give the task loss=..., which gets the outputs as they are, and metric=... or None"
        )
    return logits


def accuracy(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of correct predictions and the number of targets, without targets that are left out."""
    scores = logits_of(outputs)
    if targets.is_floating_point():  # probabilities of the classes
        targets = targets.argmax(dim=1)
    counted = targets != IGNORED
    return ((scores.argmax(dim=1) == targets) & counted).sum(), counted.sum()


def cross_entropy_sum(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy summed over targets that are not left out, and how many these are."""
    scores = logits_of(outputs)
    if torch.finfo(scores.dtype).bits < 32:  # a sum of many such numbers would be far off
        scores = scores.float()
    if targets.is_floating_point():  # probabilities of the classes
        counted = torch.tensor(targets.numel() // targets.shape[1])
        return functional.cross_entropy(scores, targets.to(scores.dtype), reduction="sum"), counted
    return functional.cross_entropy(scores, targets, reduction="sum"), (targets != IGNORED).sum()


def mean_of(function: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Tensor:
    """Return a loss or metric of a batch as one number; it may be given as a pair (sum, count)."""
    value = function(logits_of(outputs) if function is functional.cross_entropy else outputs, targets)
    mean: Tensor = value[0] / value[1] if isinstance(value, tuple) else value
    return mean


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem: data, a model, a loss and metrics.

    `model` is a function that builds an nn.Module, or a module, which the run copies. loss(outputs, targets) returns
    the mean over the batch, or a pair (sum, count). metric(outputs, targets) returns a number or such a pair; larger is
    better. `metric` may be None, or a dict of several metrics by name, of which the first is the primary one. The
    defaults are cross-entropy and accuracy.

    In evaluation, pairs are added up over all samples. A function that returns a number is called once, with the
    outputs and targets of all samples.

    `buffers` selects how buffers that training changes, such as BatchNorm's running statistics, are handled: "average"
    sends and averages them with the model; with "local" each client keeps its own, as in FedBN.
    """

    name: str
    data: FederatedData
    model: Callable[[], nn.Module] | nn.Module
    clients_per_round: int | None = None  # None: all of them
    batch_size: int | None = 32  # None: each client's whole data
    loss: Callable[[Any, Any], Any] = functional.cross_entropy
    metric: Metric | Mapping[str, Metric] | None = accuracy
    buffers: str = "average"

    def __post_init__(self) -> None:
        if not isinstance(self.data, FederatedData):
            raise ConfigError(
                f"data must be FederatedData, not {type(self.data).__name__}; "
                "make it with FederatedData.from_clients(train=[(x0, y0), ...], test=(x, y))"
            )
        if not callable(self.model):
            raise ConfigError(
                "model must be a function that builds the model, e.g. model=lambda: nn.Linear(20, 3), or an nn.Module"
            )
        _check_metric(self.metric)
        if self.buffers not in BUFFERS:
            raise ConfigError(f"buffers must be {' or '.join(map(repr, BUFFERS))}, not {self.buffers!r}")
        if self.batch_size is not None:
            whole("batch_size", self.batch_size)
        if self.clients_per_round is not None:
            whole("clients_per_round", self.clients_per_round)
            if self.clients_per_round > self.data.clients:
                raise ConfigError(
                    f"clients_per_round is {self.clients_per_round}, but there are {self.data.clients} clients; "
                    f"give 1 to {self.data.clients}, or all (None in Python)"
                )
        for name in ("batch_size", "clients_per_round"):  # numbers of numpy's, too
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        if self.loss is not functional.cross_entropy and self.metric is accuracy:
            object.__setattr__(self, "metric", None)  # accuracy means nothing for a loss we do not know

    def make_model(self) -> nn.Module:
        """Return the module that `model` builds or is. A run trains a copy of it (engines/module.py)."""
        return self.model if isinstance(self.model, nn.Module) else self.model()

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by name, the primary one first; one that is not in a dict has its function's name."""
        if isinstance(self.metric, Mapping):
            return dict(self.metric)
        name = getattr(self.metric, "__name__", "")
        named = name.isidentifier() and name != "loss"  # a lambda has no name
        return {} if self.metric is None else {name if named else "metric": self.metric}

    @property
    def cohort_size(self) -> int:
        """M, the number of clients per round."""
        return self.data.clients if self.clients_per_round is None else self.clients_per_round


def _check_metric(metric: Any) -> None:
    named = metric if isinstance(metric, Mapping) else {"accuracy": metric}
    if metric is not None and not (named and all(callable(function) for function in named.values())):
        raise ConfigError(
            "metric must be a function of (outputs, targets), a dict of such functions by name, or None, not "
            f"{metric!r:.60}"
        )
    for name in named:
        if not isinstance(name, str) or not name or name == "loss" or "." in name:
            raise ConfigError(f"a metric's name must be a string without dots and must not be 'loss', not {name!r}")
