"""The one round loop."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, DivergenceError, FederationError, RankError
from fedgbo.core.random import check_seed
from fedgbo.engines.allocator import keep_freed_memory
from fedgbo.engines.device import device_of
from fedgbo.engines.engine import Engine
from fedgbo.engines.join import join
from fedgbo.engines.select import engine_for
from fedgbo.engines.team import Team
from fedgbo.runs.checkpoint import Checkpoint
from fedgbo.runs.describe import describe
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.metrics import check_metrics
from fedgbo.runs.prices import Prices
from fedgbo.runs.record import Ledger, Record
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress
from fedgbo.runs.rounds import Rounds
from fedgbo.runs.start import Start, opened
from fedgbo.runs.steps import LocalSteps, check_local_steps, plain_steps
from fedgbo.runs.together import check_alike
from fedgbo.tasks.task import Task

CPU = torch.device("cpu")
SAVE_SECONDS = 30.0  # between checkpoints, at most; besides, each evaluation comes with one


Callback = Callable[[Progress], bool | None]
EngineMaker = Callable[[Task, FederatedAlgorithm, int, int, torch.device, Team, Sequence[str]], Engine]


def run(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    rounds: int,
    local_steps: LocalSteps = 10,
    seed: int = 0,
    initial_params: Tensor | None = None,
    eval_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    metrics: Sequence[str] = (),
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
    engine_maker: EngineMaker = engine_for,
    save_seconds: float = SAVE_SECONDS,
) -> Result:
    """Train `task` with `algorithm` and return the result.

    `local_steps` is K: a number, a list with one for each client, a schedule over rounds, or a function of `round`,
    `client` or both. `initial_params` is a flat vector in the order of `model.parameters()`. The test set is evaluated
    every `eval_every` rounds (by default 100 times a run) and at the end. Each callback gets a Progress after every
    round, and stops the run by returning True.

    With `out`, the run is kept in that folder; `resume=True` goes on with what the folder holds, bit for bit as if it
    had never stopped. `config` is what the folder's run.json says of the run, by default a description of the objects.

    `workers` clients are trained at the same time, one core each, by default as many as there are cores; results do not
    depend on it. `device` is "cpu", "cuda", "cuda:1" or "auto"; the result's tensors are on the CPU in any case.

    `metrics` are measured in every round and recorded as Record.drift at each evaluation, as the mean since the last:
    "cosine" is how far the clients' models are apart, "drift" adds how far their gradients are off those at x_t, at
    twice the work. Results do not depend on them.

    Under torchrun each process trains its share of the clients, and all return the same result, bit for bit that of one
    process. The first process alone writes into `out` and calls the callbacks. Metrics are for one process.

    `engine_maker` makes what trains the clients and evaluates, where that is not this machine alone. A checkpoint is
    saved with each evaluation and, between them, when the last one is `save_seconds` old.
    """
    whole("rounds", rounds)
    eval_every = evaluations(rounds) if eval_every is None else eval_every
    whole("eval_every", eval_every)
    if workers is not None:
        whole("workers", workers)
    check_seed(seed)
    metrics = check_metrics(metrics)
    check_local_steps(local_steps, task.data.clients)
    seed, local_steps = int(seed), plain_steps(local_steps)
    if not isinstance(algorithm, FederatedAlgorithm):
        raise ConfigError(f"algorithm must be one such as FedGBO(SGDm(lr=0.1, beta=0.9)), not {algorithm!r}")

    keep_freed_memory()
    team = join()
    try:
        place = team.together(lambda: device_of(device, team))
        workers = max(1, cores() // team.local_size) if workers is None else workers
        with reproducible(place):
            engine = team.together(lambda: engine_maker(task, algorithm, seed, workers, place, team, metrics))
            params = _initial_params(engine, initial_params)
            about = _about(task, algorithm, local_steps, seed, params)
            check_alike(team, about, place)
            begin = Start(algorithm.init(params).on("cpu"), Ledger(), [])
            own_config = {**about, "rounds": rounds, "eval_every": eval_every, "metrics": metrics}
            with opened(team, begin, about, out, resume, own_config if config is None else config) as (folder, start):
                loop = _Loop(engine, algorithm, local_steps, eval_every, callbacks, folder, about, team, save_seconds)
                return loop.go(Progress(start.state.on(place), start.ledger, rounds), start.history)
    except BaseException as error:
        team.leave(error)
        raise


@dataclass(eq=False)
class _Loop:
    engine: Engine
    algorithm: FederatedAlgorithm
    local_steps: LocalSteps
    eval_every: int
    callbacks: Sequence[Callback]
    folder: RunFolder | None
    about: Mapping[str, Any]
    team: Team
    save_seconds: float

    def go(self, progress: Progress, history: list[Record]) -> Result:
        """Run the rounds that are left."""
        task = self.engine.task
        rounds = Rounds(self.engine, self.algorithm, self.local_steps, Prices.of(self.engine))
        self.saved_at = time.monotonic()
        try:
            if self._due(progress) and (not history or history[-1].round < progress.ledger.round):
                progress = self._evaluated(progress)  # the first, or one that an interrupt cut off
            stop = self._tell(progress, history, save=False)
            while progress.ledger.round < progress.rounds and not stop:
                progress = rounds.next(progress)
                if due := self._due(progress):
                    progress = self._evaluated(progress)
                stop = self._tell(progress, history, save=due or self._old())
        except KeyboardInterrupt:
            self._end(progress, "interrupted")
            raise
        except (RankError, FederationError) as error:
            self._end(progress, "interrupted", reason=str(error))
            raise
        except DivergenceError as error:
            self._end(progress, "diverged", reason=str(error))
            raise
        if not history or history[-1].round != progress.ledger.round:  # a callback stopped between evaluations
            progress = self._evaluated(progress)
            self._tell(progress, history, save=False, callbacks=())
        finished = progress.ledger.round >= progress.rounds
        self._end(progress, "finished" if finished else "stopped", accuracy=history[-1].accuracy)
        return Result(task, progress.state.on("cpu").clone(), history)  # it may be part of a larger piece of memory

    def _due(self, progress: Progress) -> bool:
        """Return whether the round that was just done is to be evaluated."""
        return progress.ledger.round % self.eval_every == 0 or progress.ledger.round == progress.rounds

    def _evaluated(self, progress: Progress) -> Progress:
        """Add a record of the test scores."""
        began, ledger = time.perf_counter(), progress.ledger
        scores = self.engine.evaluate(progress.state.params)
        if not torch.isfinite(torch.tensor(scores["loss"])):
            raise DivergenceError(f"the test loss is {scores['loss']} after round {ledger.round}")
        drift = ledger.mean_drift()
        train_loss = ledger.loss_sum / ledger.loss_rounds if ledger.loss_rounds else None
        took = time.perf_counter() - began
        seconds = ledger.seconds + took
        ledger = ledger._replace(seconds=seconds, loss_sum=0.0, loss_rounds=0, drift_sum={}, drift_rounds=0)
        record = Record(
            round=ledger.round,
            loss=scores["loss"],
            accuracy=scores.get("accuracy"),
            train_loss=train_loss,
            download_bytes=ledger.download_bytes,
            upload_bytes=ledger.upload_bytes,
            flops=ledger.flops,
            counted_flops=ledger.counted_flops,
            seconds=seconds,
            drift=drift,
        )
        return progress._replace(ledger=ledger, record=record, seconds={**progress.seconds, "evaluation": took})

    def _tell(
        self, progress: Progress, history: list[Record], *, save: bool, callbacks: Sequence[Callback] | None = None
    ) -> bool:
        """Let the leader write the round down, then tell the callbacks; return whether one of them wants to stop."""
        if progress.record is not None:
            history.append(progress.record)

        def tell() -> bytes:
            if progress.record is not None and self.folder is not None:
                self.folder.append(progress.record)
            told = self._saved(progress) if save else progress
            wishes = [callback(told) for callback in (self.callbacks if callbacks is None else callbacks)]
            return b"stop" if any(wishes) else b""

        return self.team.lead(tell) == b"stop"

    def _old(self) -> bool:
        """Return whether the last checkpoint was long ago."""
        return time.monotonic() - self.saved_at >= self.save_seconds

    def _saved(self, progress: Progress) -> Progress:
        """Save a checkpoint, and note how long that took."""
        began = time.monotonic()
        self._save(progress)
        self.saved_at = time.monotonic()
        return progress._replace(seconds={**progress.seconds, "saving": self.saved_at - began})

    def _save(self, progress: Progress) -> None:
        if self.folder is not None:
            self.folder.save(Checkpoint(progress.state, progress.ledger, self.about))

    def _end(self, progress: Progress, status: str, **more: Any) -> None:
        self._save(progress)
        if self.folder is not None:
            self.folder.set_status(status, round=progress.ledger.round, rounds=progress.rounds, **more)


def evaluations(rounds: int) -> int:
    """Return after how many rounds a run is evaluated unless it is said: 100 times in all.

    >>> evaluations(5000), evaluations(30)
    (50, 1)
    """
    return max(1, rounds // 100)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def reproducible(device: torch.device = CPU) -> Iterator[None]:
    """One thread for each operation, so that bits do not depend on the machine's cores; torch's own seed kept."""
    threads, fixed = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    try:
        with torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = fixed


def _initial_params(engine: Engine, given: Tensor | None) -> Tensor:
    own = engine.initial_params
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


def _about(
    task: Task, algorithm: FederatedAlgorithm, local_steps: LocalSteps, seed: int, params: Tensor
) -> dict[str, Any]:
    """Return what must be the same for a run to be resumed."""
    return {
        "task": {
            "name": task.name,
            "clients": task.data.clients,
            "samples": len(task.data.train),
            "clients_per_round": task.cohort_size,
            "batch_size": task.batch_size,
            "parameters": params.numel(),
        },
        "algorithm": describe(algorithm),
        "local_steps": describe(local_steps),
        "seed": int(seed),
        "initial_params": sha256(params.cpu().numpy().tobytes()).hexdigest(),
    }
