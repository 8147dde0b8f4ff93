"""The client app: answers who it is, and trains its clients' local data with the same engine as `fedgbo run`."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgbo import __version__
from fedgbo.core.errors import ConfigError, FedGBOError
from fedgbo.engines.device import device_of
from fedgbo.flower.node import Place, TaskBuilder, engine_at, hosted_clients, model_digest, sample_counts, task_at
from fedgbo.flower.order import ACTION, KEY, Settings, order_in, settings_in
from fedgbo.flower.wire import from_record, to_record
from fedgbo.runs.describe import build
from fedgbo.runs.loop import reproducible

LOG = logging.getLogger("fedgbo.flower")


def client_app(task: TaskBuilder, own: Iterable[type] = ()) -> ClientApp:
    """Return a Flower app for nodes: `app = fedgbo.flower.client_app(my_task)`.

    `task` builds the task with the node's data: a function or a name from the catalogue. Algorithms and optimisers of
    your own are given in `own`; a node loads no file that a server names. The app answers messages of ours only;
    handlers of your own can be added to it.
    """
    app, node = ClientApp(), _Node(task, {kind.__name__: kind for kind in own})
    app.query(ACTION)(node.introduce)
    app.train(ACTION)(node.train)
    return app


@dataclass(frozen=True)
class _Node:
    """Holds the builder and never a task: Flower's simulation copies it with every message."""

    builder: TaskBuilder
    own: Mapping[str, type]

    def introduce(self, message: Message, context: Context) -> Message:
        """Say which version of fedgbo runs here, which clients are hosted, and how large they and the model are."""
        answer: dict[str, Any] = {"version": __version__}
        try:
            settings = settings_in(message.content.config_records[KEY])
            build("algorithm", settings.algorithm, self.own)
            device_of(str(context.node_config.get("device", "cpu")))
            place, hosted = self._place(settings, context)
            task = task_at(place)
            model, counts = model_digest(task), sample_counts(task.data, hosted, settings.clients)
            if model != settings.model:
                raise ConfigError("this node's model has other parameters (names, shapes or types) than the server's")
            answer |= {"clients": hosted, "samples": counts, "model": model}
        except Exception as error:  # whatever the user's task builder raises
            LOG.error("this node cannot take part: %s: %s", type(error).__name__, error)
            answer["error"] = _told(error)
        return Message(RecordDict({KEY: ConfigRecord({"answer": json.dumps(answer)})}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """Train the clients that the message names, each by itself: one that fails costs none of the others."""
        record = message.content.config_records[KEY]
        settings, order = settings_in(record), order_in(record)
        algorithm = build("algorithm", settings.algorithm, self.own)
        place, hosted = self._place(settings, context)
        reply, about = RecordDict(), dict[str, Any]()
        name = str(context.node_config.get("device", "cpu"))
        device = device_of(name)
        with reproducible(device):
            engine = engine_at(place, hosted, settings, algorithm, name)
            arrays = message.content.array_records["down"]
            down = from_record(arrays, arrays, engine.initial_params).on(device)
            for client, steps in zip(order.clients, order.steps, strict=True):
                try:
                    if client not in hosted:
                        raise ConfigError(f"client {client} is not hosted here")
                    result = engine.train(algorithm, down, [client], [steps], order.round)
                except Exception as error:  # whatever the user's data and model raise
                    LOG.exception("client %d in round %d", client, order.round + 1)
                    about[str(client)] = {"error": _told(error)}
                    continue
                reply[f"up.{client}"] = to_record(result.mean.to(down.params.dtype))
                about[str(client)] = {"loss": result.loss, "samples": result.samples}
        answer = {"round": order.round, "attempt": order.attempt, "clients": about}
        reply[KEY] = ConfigRecord({"answer": json.dumps(answer)})
        return Message(reply, reply_to=message)

    def _place(self, settings: Settings, context: Context) -> tuple[Place, list[int]]:
        config = dict(context.node_config)
        return Place.of(self.builder, settings.task, config), hosted_clients(config, settings.clients)


def _told(error: Exception) -> str:
    """Say what went wrong without what may be somebody's data: our own messages hold none, others may."""
    kind = type(error).__name__
    return str(error) if isinstance(error, FedGBOError) else f"{kind}; the node's log says more"
