"""What a run gives back, and `fedgbo.load` reads from its folder."""

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from fedgbo.algorithms import FedAvg
from fedgbo.core import ConfigError, RunFolderError, State, optional, unknown, whole
from fedgbo.core.files import write_atomic
from fedgbo.data.tree import map_tensors
from fedgbo.engines.engine import Origin
from fedgbo.engines.evaluate import OwnModels
from fedgbo.engines.plain import PlainEngine
from fedgbo.optimisers import SGD
from fedgbo.runs.describe import label_of
from fedgbo.runs.record import ACCURACY, Record, written
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
    personalised: bool = False  # whether clients have models of their own
    own_models: OwnModels | None = None  # these models, of a run with out=; None: they were not kept

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
        """The record with the best accuracy or, without a metric, the lowest loss; the first one if several are equal.

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

    def model(self, *, best: bool = False, client: int | None = None) -> nn.Module:
        """Return a copy of the trained model, as it was evaluated, in evaluation mode.

        With `best`, it is the model of the best round, which run(keep_best=True) keeps. With `client`, it is the model
        that this client uses, if clients have models or buffers of their own; run(out=FOLDER) keeps these.
        """
        state = self._own(client) if client is not None else self._kept_best() if best else self.state
        origin = self.origin or self._built_again()
        if origin.local_buffers is not None and client is None:
            raise ConfigError(
                f"each client keeps its own buffers ({', '.join(origin.moving[:3])}), so there is no one model; "
                "choose one of them (client=0), or train with Task(buffers='average')"
            )
        return origin.finished(state.params, state.buffers)

    def _kept_best(self) -> State:
        if self.best_state is None:
            raise ConfigError("the best round's parameters were not kept; run with keep_best=True")
        return self.best_state

    def _own(self, client: int) -> State:
        if self.own_models is None:
            raise ConfigError(
                "this result has no models of clients; they are in the result of run(out=FOLDER) with a personalised "
                "algorithm, or with a model whose buffers clients keep (buffers='local')"
            )
        whole("client", client, least=0)
        if client >= self.task.data.clients:
            raise ConfigError(f"there is no client {client}; the task has clients 0 to {self.task.data.clients - 1}")
        return self.own_models(client)

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
            now, highest = (written(value, last.metric, 2) for value in (last.accuracy, best.accuracy))
            score = f"test {last.metric} {now}, best {highest}"
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
        kept["origin"] = kept["own_models"] = None
        return kept


def _left_out(name: str) -> Task:
    raise ConfigError(
        f"this result was pickled, which leaves out its task {name!r}; add it with result.with_task(task)"
    )


def to_onnx(model: nn.Module, inputs: Any) -> bytes:
    """Return a model in evaluation mode as ONNX; `inputs` is a batch, of whose first dimension the file has any size.

    A tuple's or list's parts are positional arguments, a mapping's entries keyword arguments, as in training.
    """
    optional("onnxscript", "onnx", "an ONNX file needs onnx and onnxscript")
    arguments = () if isinstance(inputs, Mapping) else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    any_size = map_tensors(_any_batch, named if named else arguments)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of a model that fails
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                model, arguments, kwargs=named, dynamo=True, dynamic_shapes=any_size, verbose=False
            )
    except Exception as error:  # whatever torch raises for a model that ONNX cannot express
        reason = str(error.__cause__ or error).strip().partition("\n")[0]  # torch wraps it in advice
        raise ConfigError(f"torch cannot write this model as ONNX: {reason}") from error
    finally:
        logging.disable(before)
    return bytes(program.model_proto.SerializeToString())


def _any_batch(x: Tensor) -> Any:
    return {0: torch.export.Dim.DYNAMIC} if x.ndim else {}


SIZE = (480, 300)  # width and height of a chart


def rows_of(history: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a flat row for each evaluation; each measure of drift has a column, such as drift.cosine."""
    rows = []
    for record in history:
        row = asdict(record)
        drift = row.pop("drift") or {}
        rows.append(row | {f"drift.{name}": value for name, value in drift.items()})
    return rows


def frame_of(history: Iterable[Record]) -> Any:
    """Return a DataFrame with a row for each evaluation."""
    return table_frame(rows_of(history))


def table_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, with a column for every name that occurs."""
    pandas = optional("pandas", "frames", "frame() needs pandas")
    return pandas.DataFrame(rows)


def chart_of(history: Sequence[Record], x: str, y: str | None, title: str) -> Any:
    """Return a chart of one number of the records against another."""
    alt = optional("altair", "charts", "plot() needs altair")
    rows = rows_of(history)
    if not rows:
        raise ConfigError("there is no evaluation to plot yet")
    numbers = {name for row in rows for name, value in row.items() if isinstance(value, int | float)}
    y = y or next((name for name in ("accuracy", "loss", "validation_accuracy") if name in numbers), "train_loss")
    for name in (x, y):
        if name not in numbers:
            raise ConfigError(unknown("number of a record", name, numbers))
    points = [{"x": row[x], "y": row[y]} for row in rows if row.get(x) is not None and row.get(y) is not None]
    own = y.endswith("accuracy") and history[0].metric != ACCURACY
    shown = {"format": "%"} if y.endswith("accuracy") and not own else {}
    across = alt.X("x:Q", title=x, axis=alt.Axis(tickMinStep=1) if x == "round" else alt.Axis())
    name = y.replace(ACCURACY, history[0].metric) if own else y
    up = alt.Y("y:Q", title=name, axis=alt.Axis(**shown), scale=alt.Scale(zero=False))
    line = alt.Chart(alt.Data(values=points)).mark_line(point=True).encode(x=across, y=up)
    return line.properties(title=title, width=SIZE[0], height=SIZE[1])
