"""Which engine runs a task: the fastest that knows its model's layers, else the plain one."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import ConfigError
from fedgbo.costs.flops import forward_macs
from fedgbo.data.samples import SparseSamples
from fedgbo.engines.engine import Engine
from fedgbo.engines.measured import MeasuredEngine
from fedgbo.engines.parallel import ParallelEngine
from fedgbo.engines.serial import SerialEngine, draws_random_numbers
from fedgbo.engines.team import ALONE, Team
from fedgbo.models.linear import SparseLinear
from fedgbo.tasks.task import Task

WORTH_THREADS = 1_000_000  # multiply-adds of a batch going forward, from which Python is the smaller part of a step


def engine_for(
    task: Task,
    algorithm: FederatedAlgorithm,
    seed: int,
    workers: int = 1,
    device: torch.device | str = "cpu",
    team: Team = ALONE,
    metrics: Sequence[str] = (),
) -> Engine:
    """Return the engine for this task and algorithm. The choice changes speed, and results only by rounding.

    Neither the number of workers nor that of processes changes a bit, nor does measuring `metrics`, which one process
    does, one client at a time.
    """
    if metrics and team.size > 1:
        raise ConfigError(
            f"metrics ({', '.join(metrics)}) are measured by one process, and here are {team.size}; leave them out, or "
            "start the run without torchrun: its result is the same"
        )
    plain = SerialEngine(task, algorithm, seed, device, team)
    other = _sparse(plain, algorithm, workers) if plain.device.type == "cpu" else None
    if metrics:
        return MeasuredEngine(plain, algorithm, gradients="drift" in metrics, other=other)
    if plain.device.type != "cpu":
        return plain
    return other or _parallel(plain, algorithm, workers) or plain


def _parallel(plain: SerialEngine, algorithm: FederatedAlgorithm, workers: int) -> Engine | None:
    """Return a ParallelEngine if there is more than one worker and the model is large enough to need them."""
    task = plain.task
    batch = task.batch_size or len(task.data.train) // task.data.clients
    workers = min(workers, -(-task.cohort_size // plain.team.size))
    if workers < 2 or batch * forward_macs(plain.model.original, plain.sample[0]) < WORTH_THREADS:
        return None
    return None if draws_random_numbers(plain.model, plain.sample) else ParallelEngine(plain, algorithm, workers)


def _sparse(plain: SerialEngine, algorithm: FederatedAlgorithm, workers: int) -> Engine | None:
    """Return a SparseEngine if the task is a linear model on sparse samples, numba is there, and the data is sound."""
    task = plain.task
    if not _sparse_linear(plain.model.module) or task.loss is not functional.cross_entropy:
        return None
    if type(task.data.train) is not SparseSamples or type(task.data.test) is not SparseSamples:
        return None
    try:
        from fedgbo.engines.sparse import SparseEngine, takes
    except ImportError:  # numba is an extra, and takes half a second to import
        return None
    return SparseEngine(plain, workers) if takes(plain, algorithm) else None


def _sparse_linear(module: nn.Module) -> bool:
    """Return whether the module is a SparseLinear and nothing more: trained whole, with nothing hooked on."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) is SparseLinear and not hooked and all(p.requires_grad for p in module.parameters())
