"""What a run was asked for, checked and complete, and where it begins or goes on."""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import (
    ConfigError,
    FederatedAlgorithm,
    RunFolderError,
    Schedule,
    State,
    Upload,
    Workload,
    at_round,
    unknown,
)
from fedgbo.core.check import check, optimisers_of
from fedgbo.core.errors import RunWarning
from fedgbo.costs.trace import Load, load_of
from fedgbo.engines.engine import Engine, Origin
from fedgbo.optimisers import OPTIMISERS
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.aggregators import ExactMean
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.runs.callbacks import Callback
from fedgbo.runs.describe import describe
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.steps import LocalSteps, steps_of
from fedgbo.tasks.task import Task

SAVE_SECONDS = 30.0  # between checkpoints, at most; besides, each evaluation comes with one
METRICS = {
    "cosine": "how far the clients' models of a round are apart (Figure 1)",
    "drift": "the same, and how much their gradients differ from those at x_t, with the bound (equations (2) and (3))",
}

FINGERPRINT = "fingerprint"  # of loss, model and data: numbers that may differ by rounding
RECENT = ("constants", "data", FINGERPRINT)  # that checkpoints of version 0.1.0 lack
TOLERANCE = 1e-3  # of a fingerprint: kernels and machines round in different ways


@dataclass(frozen=True, eq=False)
class Start:
    """The server state, on the CPU, the totals, the records so far, and the versions of the clients' states."""

    state: State
    ledger: Ledger
    history: list[Record]
    clients: Mapping[int, int]
    best: State | None = None  # the model of the best evaluation so far, where it is kept


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked request for a run: everything that `run` was given, with defaults filled in."""

    task: Task
    algorithm: FederatedAlgorithm
    pipeline: Pipeline
    rounds: int
    local_steps: LocalSteps
    seed: int
    eval_every: int
    initial_params: Tensor | np.ndarray[Any, Any] | None = None
    callbacks: Sequence[Callback] = ()
    out: Path | None = None
    resume: bool = False
    workers: int | None = None
    metrics: tuple[str, ...] = ()
    device: str = "cpu"
    engine: str = "auto"
    config: Mapping[str, Any] | None = None
    save_seconds: float = SAVE_SECONDS
    keep_best: bool = False

    def about(self, params: Tensor, origin: Origin) -> dict[str, Any]:
        """Return what must be the same for a run to be resumed."""
        about = {
            "task": {
                "name": self.task.name,
                "clients": self.task.data.clients,
                "samples": len(self.task.data.train),
                "clients_per_round": self.task.cohort_size,
                "batch_size": self.task.batch_size,
                "parameters": params.numel(),
            },
            "algorithm": describe(self.algorithm),
            "local_steps": describe(self.local_steps),
            "seed": self.seed,
            "initial_params": sha256(params.cpu().numpy().tobytes()).hexdigest(),
            "constants": origin.constants(),
            "data": self.task.data.digest(),
            FINGERPRINT: dict(origin.fingerprint),
        }
        if callable(self.local_steps) and not isinstance(self.local_steps, Schedule):
            first = steps_of(self.local_steps, range(min(8, self.task.data.clients)), 0)
            about["local_steps"] = {**about["local_steps"], "first": first}
        if self.task.buffers != "average":
            about["buffers"] = self.task.buffers
        own, usual = vars(self.pipeline), vars(Pipeline(FixedSize(self.task.cohort_size), (), ExactMean()))
        about |= {name: describe(part) for name, part in own.items() if part != usual[name]}
        if (source := self.pipeline.sampler.source()) is not None:
            about["trace"] = source
        return about if self.engine == "auto" else {**about, "engine": self.engine}

    def initial(self, engine: Engine) -> Tensor:
        """Return x_0, the model that the run starts from."""
        return _initial_params(engine, self.initial_params)

    def workload(self, engine: Engine) -> Workload:
        """Return what the run asks of its clients, for a sampler on a virtual clock."""
        data, batch = self.task.data, self.task.batch_size

        @cache
        def load() -> Load:
            return load_of(at_round(self.algorithm, 0), self.initial(engine).cpu())

        def samples(client: int, steps: int) -> int:
            own = data.size(client)
            return load().samples(steps, batch or own, own)

        @cache
        def nbytes() -> int:
            uploads = [Upload(0, up, 1, 1, 0.0, up.nbytes) for up in load().received]
            sent = [self.pipeline.encode(upload, self.seed, 0).nbytes for upload in uploads]
            buffers = 0 if engine.origin.buffers is None else 2 * engine.origin.buffers.nbytes * len(sent)
            return sum(down.nbytes for down in load().sent) + sum(sent) + buffers

        steps = lambda client, t: steps_of(self.local_steps, [client], t)[0]  # noqa: E731
        return Workload(data.clients, self.seed, steps, samples, nbytes)

    def start(self, engine: Engine) -> tuple[Start, dict[str, Any]]:
        """Return where a new run begins, and what it is."""
        params = self.initial(engine)
        for optimiser in optimisers_of(self.algorithm):
            if type(optimiser) not in OPTIMISERS.values():
                check(optimiser, params)  # a wrong formula would train, and be wrong without a word
        state = State.expect(self.algorithm.init(params), f"{type(self.algorithm).__name__}.init", params)
        state = state.with_buffers(engine.origin.buffers).on("cpu")
        return Start(state, Ledger(), [], {}), self.about(params, engine.origin)


def described(plan: Plan, about: Mapping[str, Any]) -> Plan:
    """Return the plan with a configuration: its own or, by default, a description of its objects."""
    if plan.config is not None:
        return plan
    shown = {"rounds": plan.rounds, "eval_every": plan.eval_every, "metrics": list(plan.metrics)}
    return replace(plan, config={**about, **shown})


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics' names, a single one as a tuple too; raise on one that is not known."""
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        if name not in METRICS:
            raise ConfigError(unknown("metric", str(name), METRICS))
    return names


def evaluations(rounds: int) -> int:
    """Return after how many rounds a run is evaluated by default: 100 times in all.

    >>> evaluations(5000), evaluations(30)
    (50, 1)
    """
    return max(1, rounds // 100)


def open_folder(stack: ExitStack, plan: Plan, begin: Start, about: Mapping[str, Any]) -> tuple[RunFolder | None, Start]:
    """Return the run's folder, locked until the stack is closed, and where to start; `begin` is for a new run."""
    if plan.out is None:
        return None, begin
    if plan.resume:
        folder = RunFolder.open(plan.out)
        try:
            folder.lock()
        except OSError as error:
            raise RunFolderError(f"cannot write into {plan.out}: {error.strerror}; check the permissions") from error
    else:
        folder = RunFolder.create(plan.out, plan.config or {}, plan.task.name)
    stack.callback(folder.close)
    start = _resumed(folder, about, begin) if plan.resume else begin
    if plan.rounds < start.ledger.round:
        raise ConfigError(f"{plan.out} has {start.ledger.round} rounds already; rounds must be at least that")
    return folder, start


def _resumed(folder: RunFolder, about: Mapping[str, Any], begin: Start) -> Start:
    """Return where to go on: the newest checkpoint or, if there is none, the beginning."""
    checkpoint, problems = folder.latest()
    if checkpoint is None:
        folder.rewind(-1)
        return begin
    for key in {**about, **checkpoint.about}:
        ours, theirs = about.get(key), checkpoint.about.get(key)
        if not differ(key, ours, theirs) or (theirs is None and key in RECENT):
            continue
        if key in _TOLD:
            raise RunFolderError(f"{folder.path} holds a checkpoint of another run: {_TOLD[key]}")
        raise RunFolderError(
            f"{folder.path} holds a checkpoint of another run: its {key} is {theirs}, here it is {ours}; "
            "resume it with its original settings, or choose another folder"
        )
    done = checkpoint.ledger.round
    if problems:
        _warn(f"{'; '.join(problems)}; the run continues from the older checkpoint of round {done}")
    if others := folder.moved(done):
        _warn(f"the run continues with {', '.join(others)}: its result may differ from that of an uninterrupted run")
    history = folder.rewind(done)
    if lost := _lost(folder, done, [record.round for record in history]):
        rounds = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        _warn(f"{folder.path / 'metrics.jsonl'} has lost the evaluations of rounds {rounds}; they are not repeated")
    return Start(checkpoint.state, checkpoint.ledger, history, checkpoint.clients, checkpoint.best)


def _lost(folder: RunFolder, done: int, there: Sequence[int]) -> list[int]:
    """Return the rounds until `done` whose evaluations should be in the folder and are not."""
    every = folder.config().get("eval_every")
    return sorted({*range(0, done + 1, every)} - {*there}) if isinstance(every, int) and every > 0 else []


def _warn(message: str) -> None:
    warnings.warn(message, RunWarning, stacklevel=2)


def differ(key: str, ours: Any, theirs: Any) -> bool:
    """Return whether two runs differ in one entry of `Plan.about`; fingerprints are compared up to rounding."""
    if key != FINGERPRINT or not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return bool(ours != theirs)
    return not all(math.isclose(ours[name], theirs.get(name, math.nan), rel_tol=TOLERANCE) for name in ours)


_TOLD = {
    "trace": "the trace of its sampler has changed since it was started; resume it with the same trace, or "
    "choose another folder",
    "constants": "the model's frozen parameters or constant buffers have changed since it was started; resume it with "
    "the same model, or choose another folder",
    "data": "the training or test data differ from those that it was started with; resume it with the same data, or "
    "choose another folder",
    FINGERPRINT: "the loss and the gradient of the first samples have changed since it was started, so the model, the "
    "loss or the data have changed; resume it with the same task, or choose another folder",
}


def _initial_params(engine: Engine, given: Tensor | np.ndarray[Any, Any] | None) -> Tensor:
    own = engine.origin.params
    if given is None:
        return own
    params = torch.as_tensor(given).detach().to(own.device, own.dtype, copy=True)
    if params.shape != own.shape:
        raise ConfigError(
            f"initial_params must be a flat vector of {own.numel()} numbers, in the order of model.parameters(), "
            f"not of shape {tuple(params.shape)}"
        )
    if not bool(torch.isfinite(params).all()):
        raise ConfigError("initial_params has a NaN or an infinity")
    return params
