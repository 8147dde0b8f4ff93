"""Which engine trains a task's clients: one choice, made once, before the first round."""

from collections.abc import Sequence

import torch

from fedgbo.core import ConfigError, FederatedAlgorithm, unknown
from fedgbo.costs.flops import ModelCost
from fedgbo.engines.cohort import CohortEngine
from fedgbo.engines.drift import MeasuringEngine
from fedgbo.engines.engine import Engine, LocalEngine
from fedgbo.engines.fit import check_mode
from fedgbo.engines.module import shares_state
from fedgbo.engines.one_call import OneCall, SparseDescent, sparse_descent
from fedgbo.engines.plain import InPlace, PlainEngine
from fedgbo.engines.threads import ThreadedEngine
from fedgbo.native import library
from fedgbo.tasks.task import Task

ENGINES = {
    "auto": "the fastest way that is known for the model's layers",
    "plain": "the textbook loop: torch's own layers, one client after the other",
    "vmap": "many clients at a time by torch.func.vmap, as on a GPU",
}
WORTH_THREADS = 1_000_000  # multiply-adds of a batch's forward pass; below, threads mostly wait for Python's lock


def engine_for(
    task: Task,
    algorithm: FederatedAlgorithm,
    seed: int,
    workers: int = 1,
    device: torch.device | str = "cpu",
    *,
    engine: str = "auto",
    metrics: Sequence[str] = (),
) -> Engine:
    """Return the engine for this task and algorithm; `metrics` are measured with one client at a time.

    The choice changes speed, and results only by rounding. The number of workers changes no bit, nor do metrics.
    """
    check_mode()
    if not metrics:
        return local_engine(task, algorithm, seed, workers, device, engine=engine)
    plain = PlainEngine(task, algorithm, seed, device, None if engine == "plain" else InPlace())
    chosen = local_engine(task, algorithm, seed, 1, device, engine=engine)
    other = chosen if _rounds_otherwise(chosen, algorithm) else None
    return MeasuringEngine(plain, algorithm, gradients="drift" in metrics, other=other)


def local_engine(
    task: Task,
    algorithm: FederatedAlgorithm,
    seed: int,
    workers: int = 1,
    device: torch.device | str = "cpu",
    *,
    engine: str = "auto",
) -> LocalEngine:
    """Return the engine for clients of this process."""
    if engine not in ENGINES:
        raise ConfigError(unknown("engine", engine, ENGINES))
    if engine == "plain":
        return PlainEngine(task, algorithm, seed, device, why="--engine plain")
    plain = PlainEngine(task, algorithm, seed, device, InPlace(), f"device {device}")
    if engine == "vmap" or plain.device.type != "cpu":
        return _cohort_engine(plain, algorithm, needed=engine == "vmap")
    sparse = sparse_descent(task, plain.model.original)
    if sparse is not None:
        return PlainEngine(task, algorithm, seed, device, sparse, "the model is linear and the samples are sparse")
    if plain.model.network is not None and (one := OneCall(task, plain.model.network)).takes(algorithm.terms):
        plain.descent, plain.why = one, ""
    workers = min(workers, task.cohort_size)
    pays, why = _threads_pay(plain, workers)
    plain.why = f"{plain.why}; {why}" if plain.descent is None else why
    return ThreadedEngine(plain, algorithm, workers, task.cohort_size) if pays else plain


def _cohort_engine(plain: PlainEngine, algorithm: FederatedAlgorithm, *, needed: bool) -> LocalEngine:
    """Return the engine for many clients at a time or, unless that is needed, the plain one where it cannot be used."""
    cohorts = CohortEngine(plain, algorithm)
    if (why := cohorts.refuses(algorithm)) is None:
        return cohorts
    if needed:
        raise ConfigError(f"engine vmap cannot train this: {why}; use auto, or plain")
    plain.why = f"{plain.why}; clients are not trained together, because {why}"
    return plain


def explain(engine: Engine) -> str:
    """Say which implementation of `Client.descend` was chosen, and why."""
    native = "" if library() else "; there is no C code: FEDGBO_NATIVE=0, or no compiler when fedgbo was installed"
    return f"Client.descend: {engine.choice}{native}"


def _rounds_otherwise(engine: LocalEngine, algorithm: FederatedAlgorithm) -> bool:
    """Return whether local steps differ in their last digits from those of a measured client."""
    if not isinstance(engine, PlainEngine):
        return True
    return isinstance(engine.descent, SparseDescent) or (isinstance(engine.descent, OneCall) and bool(algorithm.terms))


def _threads_pay(plain: PlainEngine, workers: int) -> tuple[bool, str]:
    """Return whether to train clients in threads, and why."""
    task = plain.task
    if workers < 2:
        return False, "there is one worker, or one client a round"
    if shares_state(plain.model.original):
        return False, "a function of the model keeps a container, which models of several workers would share"
    batch = task.batch_size or len(task.data.train) // task.data.clients
    cost = ModelCost.of(plain.model.original, plain.model.loss_of, *plain.sample)
    if cost.macs is None or cost.gradient_flops is None:
        return False, "the size of the model could not be counted"
    macs = batch * max(cost.macs, int(cost.gradient_flops) // 6)  # torch's count has products outside known layers
    why = f"a minibatch takes {macs:,} multiply-adds, threads pay off from {WORTH_THREADS:,}"
    if macs >= WORTH_THREADS and plain.draws and not plain.draw_apart():
        return False, "the model or the data draw random numbers, from generators that threads would share"
    return macs >= WORTH_THREADS, why
