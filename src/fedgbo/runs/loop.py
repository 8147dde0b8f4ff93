"""The one round loop, and the function that starts it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import Aggregator, FederatedAlgorithm, Sampler, State, Transform, whole
from fedgbo.core.errors import ConfigError, DivergenceError, FederationError, RankError, RunFolderError, unknown
from fedgbo.core.random import check_seed
from fedgbo.core.schedule import at_round, plain
from fedgbo.costs.operations import Meter
from fedgbo.engines.device import cores, device_of, keep_freed_memory
from fedgbo.engines.engine import LOCAL_BUFFERS, Engine
from fedgbo.engines.evaluate import OwnModels, primary
from fedgbo.engines.generators import reproducible
from fedgbo.engines.select import ENGINES, engine_for, explain
from fedgbo.engines.torchrun.join import under_torchrun
from fedgbo.pipeline import Pipeline
from fedgbo.runs.bar import shown
from fedgbo.runs.callbacks import Callback, check_callbacks
from fedgbo.runs.describe import describe, label_of
from fedgbo.runs.memory import ClientMemory
from fedgbo.runs.plan import SAVE_SECONDS, Plan, Start, check_metrics, described, evaluations, open_folder
from fedgbo.runs.record import Record
from fedgbo.runs.recorder import Recorder, client_memory
from fedgbo.runs.result import Result
from fedgbo.runs.round import Accounts, Progress, Rounds
from fedgbo.runs.steps import LocalSteps, check_local_steps, listed, plain_steps
from fedgbo.runs.warm_start import Initial, starting_from
from fedgbo.tasks.task import Task

GLOBAL_SCORES = (
    "scores are those of the global model, as clients have no test sets (client_tests=) to score their own models on"
)
NOBODY = "no client took part since the previous evaluation, so the model is unchanged"
EngineMaker = Callable[[Plan, torch.device], Engine]


def run(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    rounds: int,
    local_steps: LocalSteps = 10,
    seed: int = 0,
    initial_params: Initial | None = None,
    eval_every: int | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    progress: bool | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    metrics: Sequence[str] = (),
    device: str = "cpu",
    weights: str = "clients",
    sampler: Sampler | None = None,
    transforms: Sequence[Transform] = (),
    aggregator: Aggregator | None = None,
    engine: str = "auto",
    config: Mapping[str, Any] | None = None,
    engine_maker: EngineMaker | None = None,
    save_seconds: float = SAVE_SECONDS,
    keep_best: bool = False,
) -> Result:
    """Train `task` with `algorithm` and return the result.

    `local_steps` is K: a number, a list with one number per client, a schedule over rounds, or a function of `round`,
    `client` or both. `initial_params` is a state_dict, a module, a safetensors file, or a flat vector of the trainable
    parameters in the order of `model.parameters()`. The test set is evaluated every `eval_every` rounds (by default 100
    times per run) and at the end. Each callback receives a Progress after every round. It stops the run with
    progress.stop() or by raising StopRun.

    With `out`, the run is stored in that folder. `resume=True` continues the run in the folder, with the same result as
    an uninterrupted run, bit for bit. `progress` shows a progress bar; by default it is shown in terminals and
    notebooks. `config` is the content of the folder's run.json; by default it describes the objects.

    `workers` is the number of clients that are trained at the same time, one core each; the default is the number of
    cores. Results do not depend on it. `device` is "cpu", "cuda", "cuda:1" or "auto"; the result's tensors are always
    on the CPU.
    `engine="plain"` forces the textbook loop; results agree up to rounding.

    `weights="samples"` weights clients by their numbers of samples, as McMahan et al. do; by default all have the same
    weight. `sampler` chooses the cohorts instead of clients_per_round. `transforms` change uploads, in this order.
    `aggregator` replaces the mean.

    `metrics` are measured in every round. Record.drift has their mean since the previous evaluation. "cosine" is the
    distance between the clients' models; "drift" adds the difference between their gradients and those at x_t, at twice
    the cost. Results do not depend on metrics.

    Under torchrun, each process trains a share of the clients, and all return the same result as one process, bit for
    bit. Only rank 0 writes to `out` and calls the callbacks. Metrics need a single process.

    `engine_maker` builds the engine that trains and evaluates, for example on other machines. A checkpoint is saved at
    each evaluation and, in between, when the last one is `save_seconds` old.

    `keep_best=True` keeps the parameters of the best evaluation (`Result.best_params`): by the validation scores if the
    data have a validation part, else by the test scores.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"task must be a fedgbo.Task such as fedgbo.Task(name, data, model), not {task!r:.60}")
    whole("rounds", rounds)
    if eval_every is not None:
        whole("eval_every", eval_every)
    if workers is not None:
        whole("workers", workers)
    check_seed(seed)
    local_steps = listed(local_steps)
    check_local_steps(local_steps, task.data.clients)
    if not isinstance(algorithm, FederatedAlgorithm):
        raise ConfigError(f"algorithm must be one such as FedGBO(SGDm(lr=0.1, beta=0.9)), not {algorithm!r}")
    if engine not in ENGINES:
        raise ConfigError(unknown("engine", str(engine), ENGINES))
    if resume and out is None:
        raise ConfigError("resume=True needs out=, the folder of the run to resume")
    if initial_params is not None and not isinstance(initial_params, Tensor | np.ndarray):
        task, initial_params = starting_from(task, initial_params), None
    plan = Plan(
        task=task,
        algorithm=plain(algorithm),
        pipeline=plain(Pipeline.of(task.cohort_size, sampler, transforms, aggregator, weights)),
        rounds=int(rounds),
        local_steps=plain_steps(local_steps),
        seed=int(seed),
        eval_every=evaluations(int(rounds)) if eval_every is None else int(eval_every),
        initial_params=initial_params,
        callbacks=check_callbacks(callbacks),
        out=None if out is None else Path(out),
        resume=resume,
        workers=None if workers is None else int(workers),
        metrics=check_metrics(metrics),
        device=device,
        engine=engine,
        config=config,
        save_seconds=save_seconds,
        keep_best=keep_best,
    )
    keep_freed_memory()
    with shown(label_of(describe(algorithm)), progress) as bar:
        plan = replace(plan, callbacks=(*bar, *plan.callbacks))
        if under_torchrun():
            from fedgbo.runs.ranks import run_rank

            return run_rank(plan)
        return run_here(plan, _engine if engine_maker is None else engine_maker)


def run_here(plan: Plan, engine_maker: EngineMaker) -> Result:
    """Carry out a plan in this process."""
    device = device_of(plan.device)
    with reproducible(device), ExitStack() as stack:
        engine = engine_maker(plan, device)
        begin, about = plan.start(engine)
        plan = described(plan, about)
        folder, start = open_folder(stack, plan, begin, about)
        memory = client_memory(stack, plan, engine.origin, folder, start)
        recorder = Recorder(folder, plan, about, memory)
        return Loop(plan, engine, recorder, memory).go(start, device)


class Loop:
    """Runs rounds until the last one, and records them."""

    def __init__(self, plan: Plan, engine: Engine, recorder: Recorder, memory: ClientMemory | None) -> None:
        self.plan, self.engine, self.recorder, self.memory = plan, engine, recorder, memory
        self.accounts, self.initial = Accounts.of(engine), plan.initial(engine)
        self.sampler = plan.pipeline.sampler.for_run(plan.workload(engine))
        self.rounds = Rounds(
            engine=engine,
            algorithm=plan.algorithm,
            local_steps=plan.local_steps,
            pipeline=replace(plan.pipeline, sampler=self.sampler),
            accounts=self.accounts,
            meter=Meter(plan.algorithm),
            memory=memory,
            initial=self.initial,
        )
        self.personalised = plan.algorithm.personalised
        self.clients: Mapping[int, Mapping[str, float | None]] = {}  # their scores at the last evaluation

    def go(self, start: Start, device: torch.device) -> Result:
        """Run the rounds that are left."""
        history, last = start.history, self.plan.rounds
        self.plan.algorithm.version(start.state, self.sampler.most_stale())  # raises if it keeps too few server states
        progress = Progress(start.state.on(device), start.ledger, last, engine=explain(self.engine))
        if self.plan.keep_best:
            if history and start.best is None:
                raise RunFolderError(
                    f"{self.plan.out} was started without keep_best, so the best parameters so far are missing; resume "
                    "it without keep_best, or start it again"
                )
            progress = progress._replace(best=start.best)
        try:
            evaluate = self._due(progress) and (not history or history[-1].round < progress.ledger.round)
            stop = False
            while True:
                if evaluate:
                    progress = self._evaluated(progress, history)
                    history.append(progress.record)  # type: ignore[arg-type]
                stop = self.recorder.tell(progress, evaluated=evaluate)
                if progress.ledger.round >= last or stop:
                    break
                progress = self.rounds.next(progress)
                evaluate = self._due(progress)
        except KeyboardInterrupt:
            self.recorder.end(progress, "interrupted")
            raise
        except (RankError, FederationError) as error:
            self.recorder.end(progress, "interrupted", reason=str(error))
            raise
        except DivergenceError as error:
            self.recorder.end(progress, "diverged", reason=str(error))
            raise
        if not history or history[-1].round != progress.ledger.round:  # a callback stopped between evaluations
            progress = self._evaluated(progress, history)
            history.append(progress.record)  # type: ignore[arg-type]
            self.recorder.tell(progress, evaluated=True, final=True)
        status = "finished" if progress.ledger.round >= last else "stopped"
        self.recorder.end(progress, status, self.clients, accuracy=history[-1].accuracy)
        progress = progress._replace(state=progress.state.on("cpu"))
        kept = self.plan.out is not None and (self.personalised or self._local_buffers)
        return Result(
            source=self.plan.task,
            state=progress.state,
            history=history,
            config=self.plan.config or {},
            status=status,
            origin=self.engine.origin,
            best_state=progress.best,
            client_scores=self.clients,
            personalised=self.personalised,
            own_models=self._models(progress) if kept else None,
        )

    def _due(self, progress: Progress) -> bool:
        """Return whether the round that was just done is to be evaluated."""
        return progress.ledger.round % self.plan.eval_every == 0 or progress.ledger.round == progress.rounds

    def _evaluated(self, progress: Progress, history: Sequence[Record]) -> Progress:
        """Add a record of the scores, and keep the model if it is the best so far."""
        began, ledger = time.perf_counter(), progress.ledger
        scores = self.engine.evaluate(progress.state, self._own_models(progress))
        if (problem := scores.not_finite()) is not None:
            raise DivergenceError(f"{problem} after round {ledger.round}")
        took, self.clients = time.perf_counter() - began, scores.clients
        notes = [note for note in (self.accounts.note(ledger), scores.note) if note is not None]
        notes += [GLOBAL_SCORES] if self.personalised and not self._own_tests else []
        notes += [NOBODY] if ledger.round and not ledger.loss_rounds else []
        record = Record(
            round=ledger.round,
            loss=scores.loss,
            accuracy=scores.accuracy,
            train_loss=ledger.loss_sum / ledger.loss_rounds if ledger.loss_rounds else None,
            download_bytes=ledger.download_bytes,
            upload_bytes=ledger.upload_bytes,
            flops=ledger.flops,
            counted_flops=ledger.counted_flops,
            seconds=ledger.seconds + took,
            drift=ledger.mean_drift(),
            note="; ".join(notes) or None,
            validation_loss=scores.validation.get("loss"),
            validation_accuracy=primary(scores.validation),
            scores=scores.flat(),
            simulated_seconds=self.sampler.elapsed(ledger.round - 1),
        )
        if self.plan.keep_best and all(record.quality > before.quality for before in history):
            progress = progress._replace(
                best=State(progress.state.params, {}, progress.state.buffers).on("cpu").clone()
            )
        ledger = ledger._replace(seconds=record.seconds, loss_sum=0.0, loss_rounds=0, drift_sum={}, drift_rounds=0)
        return progress._replace(ledger=ledger, record=record, seconds={**progress.seconds, "evaluation": took})

    def _own_models(self, progress: Progress) -> OwnModels | None:
        """Return how to look up the model that a client uses; None: all use the server's, or it is not known here."""
        if (self.personalised and self._own_tests) or (self._local_buffers and self.memory is not None):
            return self._models(progress)
        return None

    def _models(self, progress: Progress) -> OwnModels:
        origin, memory, server = self.engine.origin, self.memory, progress.state
        algorithm = at_round(self.plan.algorithm, progress.ledger.round)
        initial = origin.client_state(algorithm, self.initial)

        def own(client: int) -> State:
            state = dict(initial) if memory is None else memory.load(client, initial)
            buffers = state.pop(LOCAL_BUFFERS, server.buffers)
            return State(algorithm.personal(server.params, state), {}, buffers)

        return own

    @property
    def _local_buffers(self) -> bool:
        return self.engine.origin.local_buffers is not None

    @property
    def _own_tests(self) -> bool:
        return self.plan.task.data.client_tests is not None


def _engine(plan: Plan, device: torch.device) -> Engine:
    workers = cores() if plan.workers is None else plan.workers
    return engine_for(plan.task, plan.algorithm, plan.seed, workers, device, engine=plan.engine, metrics=plan.metrics)
