"""What a run gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fedgbo.core import RunFolderError, State
from fedgbo.engines.engine import Origin
from fedgbo.runs.files import write_atomic
from fedgbo.runs.record import Record
from fedgbo.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Result:
    """The trained model, the server's statistics, and the history of evaluations."""

    task: Task
    state: State
    history: Sequence[Record]
    origin: Origin

    @property
    def params(self) -> Tensor:
        """The trainable parameters as one flat vector, in the order of `model.parameters()`."""
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
        """Return the trained model, as it was evaluated, in evaluation mode: a copy that is yours."""
        return self.origin.finished(self.state.params, self.state.buffers)

    def save(self, path: str | Path) -> None:
        """Write the trained model's state_dict to a safetensors file; `initial_params` of `run` reads it.

        A tied weight is written once for each of its names.
        """
        named = {name: value for name, value in self.model().state_dict().items() if isinstance(value, Tensor)}
        tensors = {name: value.cpu().contiguous().clone() for name, value in named.items()}
        try:
            write_atomic(Path(path), to_bytes(tensors))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror}; choose another place") from error
