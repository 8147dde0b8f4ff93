"""A task: federated data, a model, a loss and a score, and how many clients and samples a step takes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import ConfigError, whole
from fedgbo.data.federated import FederatedData


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of targets that have the largest output."""
    return (outputs.argmax(dim=1) == targets).double().mean()


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learnt.

    loss(outputs, targets) is a mean over the batch. metric(outputs, targets) is a mean over the batch too, larger
    being better; None leaves only the loss, as regression does. By default they are cross-entropy and accuracy.
    """

    name: str
    data: FederatedData
    model: Callable[[], nn.Module]
    clients_per_round: int | None = None  # None: all of them
    batch_size: int | None = 32  # None: each client's whole data
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    metric: Callable[[Tensor, Tensor], Tensor] | None = accuracy

    def __post_init__(self) -> None:
        if not isinstance(self.data, FederatedData):
            raise ConfigError(
                f"data must be FederatedData, not {type(self.data).__name__}; "
                "make it with FederatedData.from_clients(train=[(x0, y0), ...], test=(x, y))"
            )
        if not callable(self.model) or isinstance(self.model, nn.Module):
            raise ConfigError("model must be a function that builds the model, e.g. model=lambda: nn.Linear(20, 3)")
        if self.batch_size is not None:
            whole("batch_size", self.batch_size)
        if self.clients_per_round is not None:
            whole("clients_per_round", self.clients_per_round)
            if self.clients_per_round > self.data.clients:
                raise ConfigError(
                    f"clients_per_round is {self.clients_per_round}, but there are {self.data.clients} clients; "
                    f"give 1 to {self.data.clients}, or None for all"
                )
        for name in ("batch_size", "clients_per_round"):  # numbers of numpy's, too
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        if self.loss is not functional.cross_entropy and self.metric is accuracy:
            object.__setattr__(self, "metric", None)  # accuracy means nothing for a loss we do not know

    @property
    def cohort_size(self) -> int:
        """M, how many clients take part in a round."""
        return self.data.clients if self.clients_per_round is None else self.clients_per_round
