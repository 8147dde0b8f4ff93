"""What a run gives back, and `fedgbo.load` reads from its folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fedgbo.algorithms import FedAvg
from fedgbo.core import ConfigError, RunFolderError, State
from fedgbo.engines.engine import Origin
from fedgbo.engines.plain import PlainEngine
from fedgbo.optimisers import SGD
from fedgbo.runs.describe import label_of
from fedgbo.runs.files import write_atomic
from fedgbo.runs.history import chart_of, frame_of
from fedgbo.runs.onnx import to_onnx
from fedgbo.runs.record import Record
from fedgbo.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The trained model, the server's statistics, and the history of evaluations.

    Pickling leaves out the task, because its data may be large and its functions cannot always be pickled.
    """

    source: Task | Callable[[], Task]  # the task, or a function that builds it at its first use
    state: State
    history: Sequence[Record]
    config: Mapping[str, Any] = field(default_factory=dict)  # as in the run folder's run.json
    status: str = "finished"  # or stopped, interrupted, diverged, running, died
    origin: Origin | None = None  # the model that the run started from; None: it is built again where it is needed
    best_state: State | None = None  # the model of the best evaluation, of a run with keep_best=True
    client_scores: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    """The loss and every metric of each client on its own test samples at the last evaluation: of the model that the
    client uses, which is its own in a personalised algorithm. Empty where clients have no test sets."""

    @cached_property
    def task(self) -> Task:
        """The task. A result that was pickled or loaded may lack it; `with_task` adds it."""
        return self.source if isinstance(self.source, Task) else self.source()

    @property
    def params(self) -> Tensor:
        """The trainable parameters as one flat vector, in the order of `model.parameters()`."""
        return self.state.params

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy (the task's metric); None if the task has no metric."""
        return self._evaluated[-1].accuracy

    @property
    def loss(self) -> float | None:
        """The last test loss; None if there is no test set."""
        return self._evaluated[-1].loss

    @property
    def best(self) -> Record:
        """The record with the best accuracy or, without a metric, with the lowest loss; the first of equals.

        Scores are those of the validation part if there is one, else those of the test set.
        """
        return max(self._evaluated, key=lambda record: record.quality)

    @property
    def _evaluated(self) -> Sequence[Record]:
        if not self.history:
            raise ConfigError("this result has no evaluation yet, so it has no accuracy and no loss")
        return self.history

    @property
    def best_params(self) -> Tensor:
        """The parameters of the best round; run(keep_best=True) keeps them."""
        return self._kept_best().params

    def model(self, *, best: bool = False) -> nn.Module:
        """Return a copy of the trained model, as it was evaluated, in evaluation mode.

        With `best`, it is the model of the best round, which run(keep_best=True) keeps.
        """
        state = self._kept_best() if best else self.state
        origin = self.origin or self._built_again()
        if origin.local_buffers is not None:
            raise ConfigError(
                f"each client keeps its own buffers ({', '.join(origin.moving[:3])}), so there is no one model; "
                "train with Task(buffers='average') for one"
            )
        return origin.finished(state.params, state.buffers)

    def _kept_best(self) -> State:
        if self.best_state is None:
            raise ConfigError("the best round's parameters were not kept; run with keep_best=True")
        return self.best_state

    def _built_again(self) -> Origin:
        """Return the model that the run started from, as the task and the run's seed make it."""
        origin = PlainEngine(self.task, FedAvg(SGD(1.0)), int(self.config.get("seed", 0))).origin
        if self.config.get("constants", origin.constants()) != origin.constants():
            raise ConfigError(
                "the task's model has other frozen parameters or constant buffers than the one that was trained; "
                "add the task that the run had"
            )
        return origin

    def save(self, path: str | Path, *, best: bool = False) -> None:
        """Write the model's state_dict to a safetensors file, which `initial_params` of `run` reads.

        A path that ends in .onnx gets the model as ONNX (extra `onnx`). `best` is that of `model`. A tied weight is
        written once for each of its names.
        """
        model = self.model(best=best)
        if Path(path).suffix == ".onnx":
            content = to_onnx(model, self.task.data.train.batch(np.arange(min(2, len(self.task.data.train))))[0])
        else:
            named = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
            content = to_bytes({name: value.cpu().contiguous().clone() for name, value in named.items()})
        try:
            write_atomic(Path(path), content)
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror}; choose another place") from error

    def with_task(self, task: Task) -> "Result":
        """Return this result with the given task."""
        if not isinstance(task, Task):
            raise ConfigError(f"task must be a fedgbo.Task, not {task!r:.60}")
        return replace(self, source=task)

    def frame(self) -> Any:
        """Return the history as a pandas DataFrame with a row for each evaluation (extra `frames`)."""
        return frame_of(self.history)

    def plot(self, y: str | None = None, x: str = "round") -> Any:
        """Return an altair chart of the history (extra `charts`); `y` is the accuracy or, without one, the loss.

        Each axis is a numeric field of a record, such as x="upload_bytes" or y="train_loss".
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
        if last.loss is None or best.loss is None:
            score = "no test set, best"
        elif last.accuracy is None or best.accuracy is None:
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
        if isinstance(self.source, Task):
            kept["source"] = partial(_left_out, self.source.name)
        kept["origin"] = None
        return kept


def _left_out(name: str) -> Task:
    raise ConfigError(
        f"this result was pickled, which leaves out its task {name!r}; add it with result.with_task(task)"
    )
