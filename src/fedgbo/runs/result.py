"""What a run gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fedgbo.core import ConfigError, RunFolderError, State
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
    best_state: State | None = None  # the model of the best evaluation, of a run with keep_best=True

    @property
    def params(self) -> Tensor:
        """The trainable parameters as one flat vector, in the order of `model.parameters()`."""
        return self.state.params

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy (the task's metric); None if the task has no metric."""
        return self.history[-1].accuracy

    @property
    def loss(self) -> float | None:
        """The last test loss; None if there is no test set."""
        return self.history[-1].loss

    @property
    def best(self) -> Record:
        """The record with the best accuracy or, without a metric, with the lowest loss; the first of equals.

        Scores are those of the validation part where there is one, else those of the test set.
        """
        return max(self.history, key=lambda record: record.quality)

    @property
    def best_params(self) -> Tensor:
        """The parameters of the round that `best` is the record of; they are kept by run(keep_best=True)."""
        return self._kept_best().params

    def model(self, *, best: bool = False) -> nn.Module:
        """Return the trained model, as it was evaluated, in evaluation mode: a copy that is yours.

        With `best`, it is the model of the best round, which run(keep_best=True) keeps.
        """
        state = self._kept_best() if best else self.state
        return self.origin.finished(state.params, state.buffers)

    def _kept_best(self) -> State:
        if self.best_state is None:
            raise ConfigError("the best round's parameters were not kept; run with keep_best=True")
        return self.best_state

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
