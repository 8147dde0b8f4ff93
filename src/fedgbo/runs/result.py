"""What a run gives back."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedgbo.core import State
from fedgbo.runs.record import Record
from fedgbo.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Result:
    """The trained model, the server's statistics, and the history of evaluations."""

    task: Task
    state: State
    history: Sequence[Record]

    @property
    def params(self) -> Tensor:
        """The model's parameters as one flat vector, in the order of `model.parameters()`."""
        return self.state.params

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy (the task's metric); None if the task has no metric."""
        return self.history[-1].accuracy

    @property
    def loss(self) -> float:
        """The last test loss."""
        return self.history[-1].loss

    @property
    def best(self) -> Record:
        """The record with the best accuracy or, without a metric, with the lowest test loss; the first of equals."""
        return max(self.history, key=lambda record: -record.loss if record.accuracy is None else record.accuracy)

    def model(self) -> nn.Module:
        """Build the task's model with the trained parameters."""
        module = self.task.model()
        vector_to_parameters(self.params.clone(), module.parameters())
        return module.eval()
