"""What the server asks of a node: the settings of the run, and one round's work. Plain numbers and JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord

from fedgbo import __version__
from fedgbo.core.errors import ConfigError, DataError

KEY = "fedgbo"  # of the record in every message of ours
ACTION = "fedgbo"  # of the messages, so that an app may have other ones of its own
MAX_TEXT = 1_000_000  # characters of JSON that are read from a message


@dataclass(frozen=True)
class Settings:
    """What a node has to know of the run, so that its clients train as those of `fedgbo run` do."""

    version: str  # of fedgbo
    task: Mapping[str, Any]  # the settings of a task that a catalogue has
    algorithm: Mapping[str, Any]
    clients: int  # N
    clients_per_round: int  # M
    batch_size: int | None
    seed: int
    model: str  # digest of the server's, see `model_digest`


@dataclass(frozen=True)
class Order:
    """One round's work for one node."""

    round: int  # t, from 0 on
    attempt: int
    clients: list[int]
    steps: list[int]  # K of each


def to_config(settings: Settings, order: Order | None = None) -> ConfigRecord:
    """Return the record for a message."""
    record = ConfigRecord({"settings": json.dumps(asdict(settings))})
    if order is not None:
        record["order"] = json.dumps(asdict(order))
    return record


def settings_in(record: Mapping[str, Any]) -> Settings:
    """Return the settings in a message; raise ConfigError if they are from another version of fedgbo."""
    content = read_json(record, "settings")
    if (theirs := content.get("version")) != __version__:
        raise ConfigError(f"the server has fedgbo {theirs}, this node {__version__}; install the same version on both")
    return Settings(**content)


def order_in(record: Mapping[str, Any]) -> Order:
    """Return the work in a message."""
    return Order(**read_json(record, "order"))


def read_json(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the table under a key of a record that came from outside; raise DataError if there is none."""
    text = record.get(key)
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise DataError(f"the message has no readable '{key}'")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the message's '{key}' is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"the message's '{key}' is no table")
    return content
