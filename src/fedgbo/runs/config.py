"""A run as plain data, as in run.json, how it is carried out, and how it is loaded."""

import re
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedgbo.core import ConfigError, FederatedAlgorithm, RunFolderError, permutation, unknown, whole
from fedgbo.core.errors import RunWarning, wanted
from fedgbo.data.federated import hold_out
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.describe import build, describe, label_of
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.loop import run
from fedgbo.runs.result import Result
from fedgbo.runs.steps import LocalSteps
from fedgbo.tasks.task import Task

Table = dict[str, Any]


class RunConfig(BaseModel):
    """One run. `task` and `algorithm` are tables as in `fedgbo.runs.describe`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Table
    algorithm: Table
    rounds: int
    local_steps: int | list[int] | Table = 10
    seed: int = 0
    eval_every: int | None = None
    clients_per_round: int | Literal["all"] | None = None  # None: as the task has it
    batch_size: int | Literal["full"] | None = None  # None: as the task has it
    test_samples: int | None = None  # a fixed random sample of the test set; None: all of it
    held_out: float | None = None  # test on this share of every client's training samples; None: on the test set
    metrics: list[str] = []  # measured in every round: see fedgbo.runs.loop
    weights: Literal["clients", "samples"] | None = None  # of the mean; None: all clients count the same
    sampler: Table | str | None = None  # a table or a name; None: clients_per_round of them
    transforms: list[Table | str] = []
    aggregator: Table | str | None = None  # None: the mean
    engine: Literal["auto", "plain", "vmap"] | None = None  # None: auto
    keep_best: bool | None = None  # whether checkpoints have the best evaluation's model too; None: they have not

    def build_task(self) -> Task:
        """Build the task, with this run's clients per round, batch size and test samples."""
        task = build("task", self.task)
        if not isinstance(task, Task):
            raise ConfigError(f"task {self.task['name']} must return a fedgbo.Task, not {type(task).__name__}")
        return self.fitted(task)

    def fitted(self, task: Task) -> Task:
        """Return a task with this run's clients per round, batch size and test samples."""
        changes: dict[str, Any] = {}
        if self.clients_per_round is not None:
            changes["clients_per_round"] = None if self.clients_per_round == "all" else self.clients_per_round
        if self.batch_size is not None:
            changes["batch_size"] = None if self.batch_size == "full" else self.batch_size
        data = task.data
        if self.held_out is not None:
            data = hold_out(data, self.held_out, by_client=self.built_algorithm.personalised)
        if self.test_samples is not None and data.test is not None:
            whole("test_samples", self.test_samples)
            rows = np.sort(permutation(len(data.test), 0, "test sample")[: self.test_samples])
            data = replace(data, test=data.test.take(rows))
        return replace(task, data=data, **changes)

    @cached_property
    def built_algorithm(self) -> FederatedAlgorithm:
        """The algorithm, built once."""
        algorithm = build("algorithm", self.algorithm)
        if not isinstance(algorithm, FederatedAlgorithm):
            raise ConfigError(f"algorithm {self.algorithm['name']} must be a fedgbo.FederatedAlgorithm")
        return algorithm

    def __reduce__(self) -> tuple[Any, ...]:
        return RunConfig.model_validate, (self.model_dump(),)  # without the algorithm: others may not know its class

    def build_pipeline(self) -> dict[str, Any]:
        """Build the sampler, the transforms and the aggregator, as arguments of `run`."""
        return {
            "weights": self.weights or "clients",
            "sampler": None if self.sampler is None else build("sampler", _table(self.sampler)),
            "transforms": [build("transform", _table(one)) for one in self.transforms],
            "aggregator": None if self.aggregator is None else build("aggregator", _table(self.aggregator)),
        }

    def build_local_steps(self) -> LocalSteps:
        """Build K."""
        steps: LocalSteps = (
            build("schedule", self.local_steps) if isinstance(self.local_steps, dict) else self.local_steps
        )
        return steps

    def complete(self) -> "RunConfig":
        """Return this with every default written out and every file of the user's named by its full path."""
        task = dict(self.task)
        if ":" in task["name"]:
            file, _, name = task["name"].rpartition(":")
            task["name"] = f"{Path(file).expanduser().resolve()}:{name}"
        parts = {name: describe(part) for name, part in self.build_pipeline().items() if getattr(self, name)}
        return self.model_copy(update={"task": task, "algorithm": describe(self.built_algorithm), **parts})

    @property
    def label(self) -> str:
        """A short name: the algorithm, and its optimiser unless that is plain SGD."""
        return label_of(self.algorithm)


def _table(given: Table | str) -> Table:
    return {"name": given} if isinstance(given, str) else given


def execute(
    config: RunConfig,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
) -> Result:
    """Carry out a configuration, into the folder `out` if there is one."""
    return run(
        config.build_task(),
        config.built_algorithm,
        rounds=config.rounds,
        local_steps=config.build_local_steps(),
        seed=config.seed,
        eval_every=config.eval_every,
        callbacks=callbacks,
        progress=False,
        out=out,
        resume=resume,
        workers=workers,
        metrics=config.metrics,
        device=device,
        engine=config.engine or "auto",
        keep_best=bool(config.keep_best),
        **config.build_pipeline(),
        config=config.complete().model_dump(),
    )


def read_config(path: Path) -> RunConfig:
    """Read the configuration of the run in a folder."""
    folder = RunFolder(path)
    content: dict[str, Any] = folder.config()
    try:
        return RunConfig(**content)
    except (ValidationError, TypeError) as error:
        if "initial_params" in content:
            raise RunFolderError(
                f"{path} was started from Python; continue with fedgbo.run(..., out={str(path)!r}, resume=True)"
            ) from error
        raise RunFolderError(f"{path / 'run.json'} is damaged: {error}") from error


def load(folder: str | Path, task: Task | None = None) -> Result:
    """Read a run folder: the history, the configuration, the status, and the state of the last checkpoint.

    For a run of the command line, the task is rebuilt when it is first used, for example by `result.model()`. For a run
    that was started in Python, pass `task`.
    """
    run = RunFolder.open(Path(folder))
    checkpoint, problems = run.latest()
    if checkpoint is None:
        raise RunFolderError(f"{folder} has no checkpoint yet; wait for the run's first evaluation, or start it again")
    for problem in problems:
        warnings.warn(f"{problem}; the checkpoint before it is loaded", RunWarning, stacklevel=2)
    result = Result(
        source=partial(_rebuilt, Path(folder)),
        state=checkpoint.state,
        history=run.records(),
        config=run.config(),
        status=run.condition(),
        best_state=checkpoint.best,
        client_scores=run.client_scores(),
        personalised=_personalised(run.config()),
    )
    return result if task is None else result.with_task(task)


def _personalised(config: Mapping[str, Any]) -> bool:
    """Return whether the clients of a run have models of their own; False if its algorithm cannot be built here."""
    try:
        algorithm: FederatedAlgorithm = build("algorithm", config["algorithm"])
    except (ConfigError, KeyError):
        return False
    return algorithm.personalised


def _rebuilt(folder: Path) -> Task:
    content = RunFolder(folder).config()
    if "initial_params" in content:
        raise ConfigError(f"{folder} was started from Python; give its task: fedgbo.load({str(folder)!r}, task=task)")
    return read_config(folder).build_task()


def explain(
    error: ValidationError, file: Path | None, text: str, model: type[BaseModel], given: Container[str] = ()
) -> str:
    """Return a message that names every wrong setting, with its line unless it was `given` on the command line."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for item in error.errors():  # one for every member of a union
        place = [str(part) for part in item["loc"]]
        found.setdefault(".".join(place[: 2 if _inner(model, place[0]) else 1]), []).append(item)
    messages = []
    for name, items in found.items():
        outer, _, key = name.rpartition(".")
        known = (_inner(model, outer) or model).model_fields
        kind = f"setting of [{outer}]" if outer else "setting"
        forbidden = items[0]["type"] == "extra_forbidden"
        message = unknown(kind, key, known) if forbidden else f"{name} {wanted(items)}"
        line = None if key in given or items[0]["type"] == "missing" else line_of(text, key)
        messages.append(f"{file}, line {line}: {message}" if file and line else message)
    return "; ".join(messages)


def _inner(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a table in a file, such as [search] of a study."""
    kind = model.model_fields[name].annotation if name in model.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def line_of(text: str, word: str) -> int | None:
    """Return the number of the first line with `word` as a key or a value."""
    pattern = re.compile(rf"(^|[\s\[{{.,\"'=]){re.escape(word)}($|[\s\]}}.,\"'=])")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)), None)
