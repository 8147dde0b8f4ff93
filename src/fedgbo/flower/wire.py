"""Messages between the server and the nodes: settings and orders as JSON, states as Flower arrays in the npy format.

Incoming content is compared with the expected names, types and lengths before it is used. The npy header is read by
numpy's own literal parser; arrays are never unpickled, and no buffer larger than the received one is allocated.
"""

import io
import json
import secrets
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from numpy.lib import format as npy
from torch import Tensor

from fedgbo import __version__
from fedgbo.core import ConfigError, DataError, State

KEY = "fedgbo"  # of our record in a message
ACTION = "fedgbo"  # of our messages; an app may have handlers for other actions
STYPE = "numpy.ndarray"  # Flower's name for npy, its default
MAX_TEXT = 1_000_000  # characters of JSON read from a message
MAX_HEADER = 1_000  # characters; a flat vector's npy header has about a hundred
MAX_SAMPLES = 10**12  # that a client may report
MAX_VECTORS = 16  # of an update, where the algorithm's are not known beforehand
MAX_LOSS = 1e100  # far above any real loss; sums over clients and rounds stay finite


@dataclass(frozen=True)
class Settings:
    """The settings of a run that a node needs to train its clients exactly as `fedgbo run` does."""

    version: str  # of fedgbo
    task: Mapping[str, Any]  # arguments of the task builder
    algorithm: Mapping[str, Any]
    clients: int  # N
    clients_per_round: int  # M
    batch_size: int | None
    seed: int
    model: str  # see `model_digest`
    transforms: list[Mapping[str, Any]]  # that encode what clients send
    run: str  # names the folder in which a node keeps its clients' states, 16 hexadecimal digits


@dataclass(frozen=True)
class Order:
    """The clients that one node trains in one round."""

    round: int  # t, from 0
    attempt: int
    clients: list[int]
    steps: list[int]  # K of each client
    since: list[int]  # the round of each client's last update that counted; -1: none


@dataclass(frozen=True, eq=False)
class Update:
    """A client's validated update."""

    up: State
    loss: float
    gradients: int  # sample gradients that it computed
    operations: float | None  # other operations per parameter; None: not counted


class ClientFailed(Exception):  # noqa: N818 - reported by a client; not an error of the server
    """A node reported that a client's training failed."""


def to_content(settings: Settings, order: Order | None = None, down: ArrayRecord | None = None) -> RecordDict:
    """Return the content of a message to a node: a query or, with an order and the server's state, a training round."""
    config = ConfigRecord({"settings": json.dumps(asdict(settings))})
    if order is not None:
        config["order"] = json.dumps(asdict(order))
    return RecordDict({KEY: config} if down is None else {"down": down, KEY: config})


def to_reply(message: Message, answer: Mapping[str, Any], arrays: Mapping[str, ArrayRecord] | None = None) -> Message:
    """Return a node's reply to a message."""
    content = RecordDict(dict(arrays or {}))
    nonce = secrets.token_hex(8)  # so that no other node can guess the record's hash, its id in Flower's store
    content[KEY] = ConfigRecord({"answer": json.dumps(answer), "nonce": nonce})
    return Message(content, reply_to=message)


def settings_in(content: RecordDict) -> Settings:
    """Return the settings in a message; raise ConfigError if they are from another version of fedgbo."""
    found = json_in(content, "settings")
    if (theirs := found.get("version")) != __version__:
        raise ConfigError(f"the server has fedgbo {theirs}, this node {__version__}; install the same version on both")
    return Settings(**found)


def json_in(content: RecordDict, key: str) -> dict[str, Any]:
    """Return the JSON object under a key of our record in a message; raise DataError if there is none."""
    record = content.config_records.get(KEY) or ConfigRecord()
    text = record.get(key)
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise DataError(f"the message has no readable '{key}'")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{key}' in the message is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"'{key}' in the message is not a JSON object")
    return found


def read_answer(content: RecordDict, order: Order) -> Mapping[str, Any]:
    """Return the answer's table of clients; raise DataError unless it answers this order."""
    answer = json_in(content, "answer")
    if (answer.get("round"), answer.get("attempt")) != (order.round, order.attempt):
        raise DataError("the reply is for another round")
    clients = answer.get("clients")
    if not isinstance(clients, dict):
        raise DataError("the reply does not say which clients it is for")
    return clients


def read_update(
    content: RecordDict, about: Mapping[str, Any], client: int, names: Sequence[str] | None, like: State
) -> Update:
    """Return a client's update; raise DataError if it is invalid, ClientFailed if its training failed."""
    said = about.get(str(client))
    if not isinstance(said, dict):
        raise DataError("the reply does not have this client's update")
    if "error" in said:
        raise ClientFailed(short(said["error"], 300))
    loss, samples, operations = said.get("loss"), said.get("samples"), said.get("operations")
    if not isinstance(loss, int | float) or not abs(loss) <= MAX_LOSS:  # also true of NaN
        raise DataError(f"its training loss is {short(loss, 40)}")
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise DataError(f"it reports that it used {short(samples, 40)} samples")
    if operations is not None and (not isinstance(operations, int | float) or not 0 <= operations <= MAX_SAMPLES):
        raise DataError(f"it reports {short(operations, 40)} operations per parameter")
    record = content.array_records.get(f"up.{client}")
    if record is None:
        raise DataError("the reply has no arrays for this client")
    if names is None and len(record) > MAX_VECTORS:
        raise DataError(f"it has {len(record)} vectors; at most {MAX_VECTORS} are read")
    up = from_record(record, names or list(dict.fromkeys(["params", *record])), like, numbers=names is None)
    if (name := up.not_finite()) is not None:
        raise DataError(f"{name} has a NaN or an infinity")
    return Update(up, float(loss), samples, operations)


@dataclass(eq=False)
class NormBounds:
    """Bounds on the norms of updates.

    A norm must be at most `largest` times that of the model (at least 1), and at most `factor` times the median of the
    other clients' vectors of that name. Of two clients neither can be called the outlier: they are compared with the
    median of what was accepted in earlier rounds. 0 means no bound.
    """

    factor: float
    largest: float
    usual: dict[str, float] = field(default_factory=dict)  # median norm of each vector in the last round

    def outliers(self, updates: Mapping[int, Update], model: Tensor) -> dict[int, str]:
        """Return the clients whose updates differ from the others, by names or norms, each with the reason."""
        names = {client: tuple(update.up.tensors()) for client, update in updates.items()}
        counts = Counter(names.values())
        usual = max(counts, key=lambda one: (counts[one], one), default=())
        found = {
            client: f"it uploads {short(', '.join(own))}, most others {short(', '.join(usual))}"
            for client, own in names.items()
            if own != usual
        }
        found |= _other_lengths({c: update for c, update in updates.items() if c not in found})
        vectors = {client: update.up.tensors() for client, update in updates.items() if client not in found}
        limit = self.largest * max(1.0, _norm(model))
        for name in usual:
            norms = {client: _norm(own[name]) for client, own in vectors.items()}
            for client, norm in norms.items():
                others = [other for c, other in norms.items() if c != client]
                middle, whose = (median(others), "the others") if len(others) > 1 else (self._past(name), "past rounds")
                if self.largest > 0 and norm > limit:
                    found.setdefault(client, f"the norm of {name} is {norm:.3g}, larger than max-update allows")
                elif self.factor > 0 and middle > 0 and norm > self.factor * middle:
                    times = f"{norm / middle:.3g} times the median of {whose}"
                    found.setdefault(client, f"the norm of {name} is {norm:.3g}, {times}")
        return found

    def accept(self, updates: Mapping[int, Update]) -> None:
        """Remember the norms of a round's accepted updates. A lone update must not lower the bound for the others."""
        vectors = [update.up.tensors() for update in updates.values()]
        for name in vectors[0] if vectors else ():
            least = self._past(name) if len(vectors) == 1 else 0.0
            self.usual[name] = max(least, median(_norm(own[name]) for own in vectors))

    def _past(self, name: str) -> float:
        return self.usual.get(name, 0.0)


def _other_lengths(updates: Mapping[int, Update]) -> dict[int, str]:
    """Return the clients whose vectors have other lengths than most others', each with the reason."""
    lengths = {client: tuple(len(x) for x in update.up.tensors().values()) for client, update in updates.items()}
    usual = Counter(lengths.values()).most_common(1)[0][0] if lengths else ()
    return {
        client: f"its vectors have the lengths {own}, most others {usual}"
        for client, own in lengths.items()
        if own != usual
    }


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def to_record(state: State) -> ArrayRecord:
    """Return the state's vectors by name (`params`, `stats.m`, ...)."""
    arrays = {}
    for name, tensor in state.tensors().items():
        values = tensor.detach().cpu().contiguous().numpy()
        head = io.BytesIO()
        npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(values))
        data = b"".join((head.getvalue(), values.data))  # the only copy
        arrays[name] = Array(dtype=str(values.dtype), shape=tuple(values.shape), stype=STYPE, data=data)
    return ArrayRecord(arrays)


def from_record(record: ArrayRecord, names: Iterable[str], like: State, *, numbers: bool = False) -> State:
    """Return the state in a record; raise DataError unless it has exactly these names, with vectors as in `like`.

    With `numbers`, a statistic may also be one number, of shape (1,), which would be broadcast where a vector is meant.
    """
    wanted = list(names)
    missing, extra = sorted(set(wanted) - set(record)), sorted(set(record) - set(wanted))
    if missing or extra:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        has = f"has an extra {short(', '.join(extra))}" if extra else ""
        raise DataError(f"the update {' and '.join(filter(None, [lacks, has]))}; it must be {', '.join(wanted)}")
    kinds = {name: like.buffers if name == "buffers" and like.buffers is not None else like.params for name in wanted}
    return State.of_tensors({name: _from_array(name, record[name], kinds[name], numbers) for name in wanted})


def _from_array(name: str, array: Array, like: Tensor, numbers: bool) -> Tensor:
    """Return the vector in an array without a copy; it must not be written to."""
    kind = str(like.dtype).removeprefix("torch.")
    if array.stype != STYPE:
        raise DataError(f"{name} is encoded as {short(array.stype)}, not as {STYPE}")
    if array.dtype != kind:
        raise DataError(f"{name} has type {short(array.dtype)}, not {kind}")
    shape, allowed = tuple(array.shape), [tuple(like.shape), *([(1,)] if numbers and name.startswith("stats.") else [])]
    if shape not in allowed:
        raise DataError(f"{name} has shape {short(shape)}, not {' or '.join(map(str, allowed))}")
    start = _header_length(name, array.data, np.dtype(kind), shape)
    found, expected = len(array.data) - start, shape[0] * like.element_size()
    if found != expected:
        raise DataError(f"{name} has {found} bytes, not the {expected} of its shape")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(array.data, dtype=like.dtype, offset=start)


def _header_length(name: str, data: bytes, kind: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    """Check the npy header against the expected type and shape; return its length in bytes."""
    head = io.BytesIO(data[: MAX_HEADER + 20])
    try:
        version = npy.read_magic(head)
        if version != (1, 0):
            raise ValueError(f"npy version {version}")
        found, fortran, stored = npy.read_array_header_1_0(head, max_header_size=MAX_HEADER)
    except Exception as error:  # numpy also raises IndexError, TypeError and TokenError for a malformed header
        raise DataError(f"{name} is not an npy array: {short(error)}") from error
    if fortran or tuple(found) != shape or stored != kind:
        actual = short(f"{stored} of shape {tuple(found)}")
        raise DataError(f"{name} is declared as {kind} of shape {shape}, but its bytes are {actual}")
    return head.tell()


def most_bytes(names: Sequence[str] | None, like: State) -> int:
    """Return how many bytes a client's arrays take at most."""
    largest = max(vector.nbytes for vector in (like.params, like.buffers) if vector is not None)
    return (MAX_VECTORS if names is None else len(names)) * (largest + MAX_HEADER + 20)


def wire_bytes(messages: Iterable[Message]) -> list[int]:
    """Return the bytes that each message takes on the wire: all objects that Flower splits it into.

    An object that several messages share, such as the model, goes from the server app to the SuperLink once, and from
    there to each node. It is counted for each message.
    """
    known: dict[str, int] = {}
    totals = []
    with no_object_id_recompute():
        for message in messages:
            pieces = get_all_nested_objects(message)
            known |= {key: len(piece.deflate()) for key, piece in pieces.items() if key not in known}
            totals.append(sum(known[key] for key in pieces))
    return totals


def short(text: object, most: int = 80) -> str:
    r"""Return text from outside in a form fit for a log or a terminal: printable, at most `most` characters of it.

    >>> short("a\nb \x1b[31m"), short("Grüße", most=3)
    ('a\\nb \\x1b[31m', 'Grü...')
    """
    letters = [letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text)[: most + 1]]
    return "".join(letters[:most]) + ("..." if len(letters) > most else "")
