"""What a run gives back, and `fedgbo.load` reads from its folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedgbo.core import ConfigError, State
from fedgbo.runs.describe import label_of
from fedgbo.runs.history import chart_of, frame_of
from fedgbo.runs.record import Record
from fedgbo.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The trained model, the server's statistics, and the history of evaluations.

    A pickled result keeps everything but its task, whose data are large and whose functions cannot always be pickled.
    """

    origin: Task | Callable[[], Task]  # the task, or a function that builds it at its first use
    state: State
    history: Sequence[Record]
    config: Mapping[str, Any] = field(default_factory=dict)  # as in the run folder's run.json
    status: str = "finished"  # or stopped, interrupted, diverged, running, died

    @cached_property
    def task(self) -> Task:
        """The task; a result that was pickled or loaded may not know it, and `with_task` adds it."""
        return self.origin if isinstance(self.origin, Task) else self.origin()

    @property
    def params(self) -> Tensor:
        """The model's parameters as one flat vector, in the order of `model.parameters()`."""
        return self.state.params

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy (the task's metric); None if the task has no metric."""
        return self._evaluated[-1].accuracy

    @property
    def loss(self) -> float:
        """The last test loss."""
        return self._evaluated[-1].loss

    @property
    def best(self) -> Record:
        """The record with the best accuracy or, without a metric, with the lowest test loss; the first of equals."""
        return max(self._evaluated, key=lambda record: -record.loss if record.accuracy is None else record.accuracy)

    @property
    def _evaluated(self) -> Sequence[Record]:
        if not self.history:
            raise ConfigError("this result has no evaluation yet, so it has no accuracy and no loss")
        return self.history

    def model(self) -> nn.Module:
        """Build the task's model with the trained parameters."""
        module = self.task.model()
        vector_to_parameters(self.params.clone(), module.parameters())
        return module.eval()

    def with_task(self, task: Task) -> "Result":
        """Return this result with its task, where it was pickled or loaded without."""
        if not isinstance(task, Task):
            raise ConfigError(f"task must be a fedgbo.Task, not {task!r:.60}")
        return replace(self, origin=task)

    def frame(self) -> Any:
        """Return the history as a pandas DataFrame with a row for each evaluation (extra `frames`)."""
        return frame_of(self.history)

    def plot(self, y: str | None = None, x: str = "round") -> Any:
        """Return an altair chart of the history (extra `charts`); `y` is the accuracy or, without one, the loss.

        Both axes take any number of a record, such as x="upload_bytes" or y="train_loss".
        """
        return chart_of(self.history, x, y, repr(self))

    def __repr__(self) -> str:
        what = label_of(self.config["algorithm"]) if "algorithm" in self.config else ""
        what += f" on {self.config['task']['name']}" if "task" in self.config else ""
        return f"Result({what}{': ' if what else ''}{self._score()}; {self.params.numel():,} parameters, {self.status})"

    def _score(self) -> str:
        if not self.history:
            return "not evaluated yet"
        last, best = self.history[-1], self.best
        if last.accuracy is None or best.accuracy is None:
            score = f"test loss {last.loss:.4g}, lowest {best.loss:.4g}"
        else:
            score = f"test accuracy {last.accuracy:.2%}, best {best.accuracy:.2%}"
        return f"{score} at round {best.round}, after {last.round} round{'' if last.round == 1 else 's'}"

    def __copy__(self) -> "Result":
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Result":
        return replace(
            self, state=self.state.clone(), history=list(self.history)
        )  # the task cannot change: it is shared

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in vars(self).items() if key != "task"}
        if isinstance(self.origin, Task):
            kept["origin"] = partial(_left_out, self.origin.name)
        return kept


def _left_out(name: str) -> Task:
    raise ConfigError(
        f"this result was pickled, which leaves out its task {name!r}; add it with result.with_task(task)"
    )
