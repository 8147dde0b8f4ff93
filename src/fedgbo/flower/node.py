"""What a node hosts: some of the federation's clients, and the task with their data.

Clients have numbers, 0 to N - 1, the same in every round and run: random streams are named by them, never by Flower's
node ids. A node's configuration says which are its own: `clients="0,3"`, or `partition-id=0 num-partitions=4` for every
fourth client from client 0 on. `device` is what they are trained on: cpu, which is the default, cuda, cuda:1 or auto.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import ConfigError
from fedgbo.data.federated import FederatedData
from fedgbo.engines.device import device_of
from fedgbo.engines.engine import Engine
from fedgbo.engines.select import engine_for
from fedgbo.flower.order import Settings
from fedgbo.runs.describe import build, find, parameters
from fedgbo.tasks.task import Task

TaskBuilder = str | Callable[..., Task]
"""A task's name in the catalogue, or a function that builds one. A function with one argument that must be given gets
the node's configuration there; others are settings of the task."""


@dataclass(frozen=True)
class Place:
    """Where a task is built: the builder, the task's settings and, for a builder that asks for it, the node's."""

    builder: TaskBuilder
    arguments: str  # JSON
    config: str  # JSON; empty where the builder does not ask

    @classmethod
    def of(cls, builder: TaskBuilder, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> "Place":
        """Find out what the builder takes."""
        if _wants_config(builder):
            return cls(builder, json.dumps(dict(arguments)), json.dumps(dict(config)))
        return cls(builder, json.dumps(dict(arguments)), "")


def build_task(place: Place) -> Task:
    """Build the task."""
    arguments: dict[str, Any] = json.loads(place.arguments)
    if isinstance(place.builder, str):
        task = build("task", {**arguments, "name": place.builder})
    else:
        given = [json.loads(place.config)] if place.config else []
        task = place.builder(*given, **arguments)
    if not isinstance(task, Task):
        raise ConfigError(f"the task builder must return a fedgbo.Task, not {type(task).__name__}")
    return task


@lru_cache(maxsize=4)
def task_at(place: Place) -> Task:
    """Build the task, once in a process: a simulation's worker answers many messages, and the data may be large."""
    return build_task(place)


@dataclass(frozen=True)
class _Job:
    """What an engine depends on; of the algorithm that is its kind and its terms, and not their numbers."""

    place: Place
    hosted: tuple[int, ...]  # empty where the task has the data of all clients
    clients: int
    clients_per_round: int
    batch_size: int | None
    seed: int
    device: str
    kind: str
    algorithm: FederatedAlgorithm = field(compare=False)


@lru_cache(maxsize=4)
def _engine(job: _Job) -> Engine:
    task = task_at(job.place)
    task = replace(
        task,
        data=spread(task.data, job.hosted, job.clients),
        clients_per_round=job.clients_per_round,
        batch_size=job.batch_size,
    )
    return engine_for(task, job.algorithm, job.seed, device=device_of(job.device))


def engine_at(
    place: Place, hosted: list[int], settings: Settings, algorithm: FederatedAlgorithm, device: str = "cpu"
) -> Engine:
    """Return the engine that trains this place's clients: the same one in every round that it can serve."""
    all_here = task_at(place).data.clients == settings.clients
    return _engine(
        _Job(
            place=place,
            hosted=() if all_here else tuple(hosted),
            clients=settings.clients,
            clients_per_round=settings.clients_per_round,
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=device,
            kind=f"{type(algorithm)} {algorithm.terms}",
            algorithm=algorithm,
        )
    )


def hosted_clients(config: Mapping[str, Any], clients: int) -> list[int]:
    """Return the numbers of the clients that a node hosts.

    >>> hosted_clients({"partition-id": 1, "num-partitions": 3}, clients=8)
    [1, 4, 7]
    """
    if "clients" in config:
        try:
            numbers = sorted({int(part) for part in str(config["clients"]).split(",")})
        except ValueError as error:
            raise ConfigError(
                f'node-config clients must be numbers such as "0,3,6", not {config["clients"]!r}'
            ) from error
        if not numbers or numbers[0] < 0 or numbers[-1] >= clients:
            raise ConfigError(f"node-config clients {config['clients']!r} must be within 0 ... {clients - 1}")
        return numbers
    if "partition-id" in config and "num-partitions" in config:
        return list(range(clients)[_partition(config)])
    raise ConfigError(
        'node-config must say which clients this node hosts: clients="0,3", or partition-id=0 num-partitions=4'
    )


def _partition(config: Mapping[str, Any]) -> slice:
    first, step = config["partition-id"], config["num-partitions"]
    if type(first) is not int or type(step) is not int:
        raise ConfigError(f"partition-id and num-partitions must be whole numbers, not {first!r} and {step!r}")
    if not 0 <= first < step:
        raise ConfigError(f"partition-id must be 0 ... {step - 1}, as num-partitions is {step}, not {first}")
    return slice(first, None, step)


def spread(data: FederatedData, hosted: tuple[int, ...], clients: int) -> FederatedData:
    """Return data in which a node's own clients have their numbers in the federation, and the others no samples."""
    if data.clients == clients:
        return data
    if data.clients != len(hosted):
        raise ConfigError(
            f"this node's task has {data.clients} clients; it must have all {clients} of the federation, or just the "
            f"{len(hosted)} that this node hosts"
        )
    sizes = np.zeros(clients, dtype=np.int64)
    sizes[list(hosted)] = np.diff(data.offsets)
    return replace(data, offsets=np.concatenate([[data.offsets[0]], data.offsets[0] + np.cumsum(sizes)]))


def sample_counts(data: FederatedData, hosted: list[int], clients: int) -> list[int]:
    """Return how many samples each of the node's clients has."""
    own = spread(data, tuple(hosted), clients)
    return [own.size(client) for client in hosted]


def model_digest(task: Task) -> str:
    """Return a digest of the names, shapes and types of the model's parameters."""
    with torch.random.fork_rng(devices=[]):
        module = task.model()
    kinds = [[name, str(value.dtype), list(value.shape)] for name, value in module.named_parameters()]
    return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()


def _wants_config(builder: TaskBuilder) -> bool:
    maker = find("task", builder) if isinstance(builder, str) else builder
    needed = [name for name, must in parameters(maker).items() if must]
    if len(needed) > 1:
        raise ConfigError(f"a task builder may have one argument without a default, the node's config, not {needed}")
    return bool(needed)
