"""The client app of a node: reports which clients the node hosts, and trains them with the engine of `fedgbo run`.

Clients are numbered 0 to N - 1, the same in every round and run: random streams are keyed by these numbers, never by
Flower's node ids. The node's configuration says which clients it hosts: `clients="0,3"`, or `clients="0::4"` or
`partition-id=0 num-partitions=4` for every fourth client from client 0 on. `device` is cpu (the default), cuda, cuda:1
or auto.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgbo import __version__
from fedgbo.core import ConfigError, DataError, FederatedAlgorithm, FedGBOError, RunFolderError, State
from fedgbo.costs.operations import Meter
from fedgbo.data.federated import FederatedData
from fedgbo.data.tree import digest_of
from fedgbo.engines.device import device_of
from fedgbo.engines.engine import LocalEngine, Round
from fedgbo.engines.generators import Generators, reproducible
from fedgbo.engines.module import Blueprint
from fedgbo.engines.select import local_engine
from fedgbo.flower.messenger import LOG
from fedgbo.flower.registry import client_numbers
from fedgbo.flower.wire import ACTION, Order, Settings, from_record, json_in, settings_in, to_record, to_reply
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.runs.describe import build, find, parameters
from fedgbo.runs.memory import ClientMemory
from fedgbo.tasks.task import Task

OTHER_MODEL = (
    "this node's model is not the server's: its parameters have other names, shapes or types, or its frozen parameters "
    "or buffers have other values"
)
TaskBuilder = str | Callable[..., Task]
"""A task's name in the catalogue, or a function that returns a task. If the function has one argument without a
default, it receives the node's configuration; the other arguments are settings of the task."""


def client_app(task: TaskBuilder, own: Iterable[type] = ()) -> ClientApp:
    """Return a Flower app for nodes: `app = fedgbo.flower.client_app(my_task)`.

    `task` builds the task with the node's data: a function, or a name from the catalogue. List your own algorithm and
    optimiser classes in `own`: a node never loads a file that the server names. The app handles only fedgbo's
    messages; you can add handlers of your own.
    """
    app, node = ClientApp(), _Node(task, {kind.__name__: kind for kind in own})
    app.query(ACTION)(node.introduce)
    app.train(ACTION)(node.train)
    return app


@dataclass(frozen=True)
class _Node:
    """Handles the messages. Holds the builder and no task, because Flower's simulation copies it with every message."""

    builder: TaskBuilder
    own: Mapping[str, type]

    def introduce(self, message: Message, context: Context) -> Message:
        """Reply with the version of fedgbo, the hosted clients with their sample counts, and the model's digest."""
        answer: dict[str, Any] = {"version": __version__}
        try:
            settings, config = settings_in(message.content), dict(context.node_config)
            build("algorithm", settings.algorithm, self.own)
            device_of(str(config.get("device", "cpu")))
            hosted = hosted_clients(config, settings.clients)
            task = self._task(settings, config)
            data, model = spread(task.data, hosted, settings.clients), model_digest(task, settings.seed)
            if model != settings.model:
                raise ConfigError(OTHER_MODEL)
            answer |= {"clients": hosted, "samples": [data.size(client) for client in hosted], "model": model}
        except Exception as error:
            LOG.error("this node cannot take part: %s: %s", type(error).__name__, error.__cause__ or error)
            answer["error"] = _safe_message(error, FedGBOError)
        return to_reply(message, answer)

    def _task(self, settings: Settings, config: Mapping[str, Any]) -> Task:
        """Build the task; the text of an error may quote the node's data, so the server gets its type only."""
        try:
            return build_task(self.builder, settings.task, config)
        except Exception as error:  # the user's task builder may raise anything
            raise DataError(f"its task cannot be built: {type(error).__name__}; the node's log says more") from error

    def train(self, message: Message, context: Context) -> Message:
        """Train the ordered clients one by one; a client that fails does not affect the others."""
        settings, config = settings_in(message.content), dict(context.node_config)
        order = Order(**json_in(message.content, "order"))
        algorithm = build("algorithm", settings.algorithm, self.own)
        transforms = tuple(build("transform", table, self.own) for table in settings.transforms)
        pipeline = Pipeline(FixedSize(settings.clients_per_round), transforms)
        hosted, device = hosted_clients(config, settings.clients), device_of(str(config.get("device", "cpu")))
        arrays, about = {}, dict[str, Any]()
        with reproducible(device):
            task = self._task(settings, config)
            engine = engine_at(task, hosted, settings, algorithm, device)
            received = message.content.array_records["down"]
            like = State(engine.origin.params, buffers=engine.origin.buffers)
            down = from_record(received, received, like, numbers=True).on(device)
            states, start = _states(order, settings, config), engine.origin.params  # x_0 follows from the seed
            work = Round(order.round, algorithm, down, [], [], pipeline, Meter(algorithm), states, initial=start)
            for client, steps in zip(order.clients, order.steps, strict=True):
                if client not in hosted:
                    about[str(client)] = {"error": f"client {client} is not hosted here"}
                    continue
                try:
                    work = replace(work, cohort=[client], steps=[steps])
                    (upload,) = engine.uploads(work, [(client, steps)])
                except Exception as error:  # the user's data and model may raise anything
                    LOG.exception("client %d in round %d: %s", client, order.round + 1, type(error).__name__)
                    about[str(client)] = {"error": _safe_message(error, RunFolderError)}
                    continue
                arrays[f"up.{client}"] = to_record(upload.state.to(down.params.dtype))
                numbers = {"loss": upload.loss, "samples": upload.gradients, "operations": upload.operations}
                about[str(client)] = numbers
        return to_reply(message, {"round": order.round, "attempt": order.attempt, "clients": about}, arrays)


def build_task(builder: TaskBuilder, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
    """Build a task once per process: a simulation's worker handles many messages, and the data may be large."""
    given = json.dumps(dict(config)) if takes_config(builder) else ""
    return _built(builder, json.dumps(dict(arguments)), given)


def forget_tasks() -> None:
    """Forget the tasks of this process with their engines: the next message builds its own."""
    _built.cache_clear()
    _engine.cache_clear()


def takes_config(builder: TaskBuilder) -> bool:
    """Return whether a builder takes the node's configuration, so that each machine loads its own data."""
    maker = find("task", builder) if isinstance(builder, str) else builder
    needed = [name for name, must in parameters(maker).items() if must]
    if len(needed) > 1:
        raise ConfigError(f"a task builder may have one argument without a default, the node's config, not {needed}")
    return bool(needed)


@lru_cache(maxsize=4)
def _built(builder: TaskBuilder, arguments: str, config: str) -> Task:
    """Build a task from JSON texts; the configuration is empty if the builder does not take it."""
    if isinstance(builder, str):
        task = build("task", {**json.loads(arguments), "name": builder})
    else:
        task = builder(*([json.loads(config)] if config else []), **json.loads(arguments))
    if not isinstance(task, Task):
        raise ConfigError(f"the task builder must return a fedgbo.Task, not {type(task).__name__}")
    return task


@dataclass(frozen=True)
class _EngineKey:
    """Identifies an engine; of the algorithm, its class and terms count, but not its hyperparameters."""

    task: Task
    hosted: tuple[int, ...]  # empty if the task has the data of all clients
    device: torch.device
    numbers: tuple[int | None, ...]  # from the settings
    kind: str
    settings: Settings = field(compare=False)
    algorithm: FederatedAlgorithm = field(compare=False)


@lru_cache(maxsize=4)
def _engine(key: _EngineKey) -> LocalEngine:
    settings, data = key.settings, spread(key.task.data, key.hosted, key.settings.clients)
    task = replace(key.task, data=data, clients_per_round=settings.clients_per_round, batch_size=settings.batch_size)
    return local_engine(task, key.algorithm, settings.seed, device=key.device)


def engine_at(
    task: Task, hosted: Sequence[int], settings: Settings, algorithm: FederatedAlgorithm, device: torch.device
) -> LocalEngine:
    """Return the engine that trains the hosted clients, the same one in every round if possible."""
    own = () if task.data.clients == settings.clients else tuple(hosted)
    numbers = (settings.clients, settings.clients_per_round, settings.batch_size, settings.seed)
    return _engine(_EngineKey(task, own, device, numbers, f"{type(algorithm)} {algorithm.terms}", settings, algorithm))


def _states(order: Order, settings: Settings, config: Mapping[str, Any]) -> ClientMemory:
    """Open the states of this node's clients, at the versions that the server counted.

    The folder is `state-folder` of the node's configuration, by default in ~/.local/state. An update that the server
    did not count leaves a version that no later order asks for.
    """
    if not re.fullmatch("[0-9a-f]{16}", settings.run):
        raise ConfigError(f"the run's name must be 16 hexadecimal digits, not {settings.run[:40]!r}")
    default = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "fedgbo" / "clients"
    folder = Path(str(config.get("state-folder", default))).expanduser() / settings.run
    counted = {c: t for c, t in zip(order.clients, order.since, strict=True) if t >= 0}
    return ClientMemory(folder, counted, keep_from=order.round - 1)  # the server keeps its last two checkpoints


def hosted_clients(config: Mapping[str, Any], clients: int) -> list[int]:
    """Return the numbers of the clients that a node hosts.

    >>> hosted_clients({"partition-id": 1, "num-partitions": 3}, clients=8)
    [1, 4, 7]
    """
    if "clients" in config:
        given = str(config["clients"])
        numbers = client_numbers(given, clients)
        if numbers and numbers[-1] >= clients:
            raise ConfigError(f"node-config clients {given!r} must be within 0 ... {clients - 1}")
        return numbers
    if "partition-id" not in config or "num-partitions" not in config:
        raise ConfigError(
            'node-config must say which clients this node hosts: clients="0,3", or partition-id=0 num-partitions=4'
        )
    first, count = config["partition-id"], config["num-partitions"]
    if type(first) is not int or type(count) is not int:
        raise ConfigError(f"partition-id and num-partitions must be whole numbers, not {first!r} and {count!r}")
    if not 0 <= first < count:
        raise ConfigError(f"partition-id must be 0 ... {count - 1}, as num-partitions is {count}, not {first}")
    return list(range(first, clients, count))


def spread(data: FederatedData, hosted: Sequence[int], clients: int) -> FederatedData:
    """Return data in which the node's clients have their numbers in the federation, and other clients no samples."""
    if data.clients == clients:
        return data
    if data.clients != len(hosted):
        raise ConfigError(
            f"this node's task has {data.clients} clients; it must have all {clients} of the federation, or just the "
            f"{len(hosted)} that this node hosts"
        )
    sizes = np.zeros(clients, dtype=np.int64)
    sizes[list(hosted)] = np.diff(data.offsets)
    offsets = np.concatenate([[data.offsets[0]], data.offsets[0] + np.cumsum(sizes)])
    return replace(data, offsets=offsets, validation=None, client_tests=None)  # the server evaluates


def model_digest(task: Task, seed: int) -> str:
    """Return a digest of the model that a run starts from.

    It covers names, shapes and types of trainable parameters, and the values of frozen parameters and buffers.
    """
    with Generators().kept():
        module = Blueprint.of(task.make_model, seed, task.data.train.batch(np.arange(1))[0]).module
    trained = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    kinds = [(name, str(p.dtype), tuple(p.shape)) for name, p in trained.items()]
    return digest_of((kinds, {name: x for name, x in module.state_dict().items() if name not in trained}))


def _safe_message(error: Exception, harmless: type[FedGBOError]) -> str:
    """Return a message for the server: the text of errors that cannot quote anybody's data, else only the type."""
    return str(error) if isinstance(error, harmless) else f"{type(error).__name__}; the node's log says more"
