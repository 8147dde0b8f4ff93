"""Is this an update that may count? Everything a client sends is looked at before it enters the mean."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.engines.serial import ClientResult
from fedgbo.flower.order import KEY, Order, read_json
from fedgbo.flower.wire import from_record

MAX_SAMPLES = 10**12  # that a client may say it has, or has used
MAX_LOSS = 1e100  # far above any real one; sums of these over clients and rounds are still numbers that a record takes


class ClientFailed(Exception):  # noqa: N818 - what a client says of itself, not an error of the server's
    """The node says that a client's training failed."""


def read_answer(content: RecordDict, order: Order) -> Mapping[str, Any]:
    """Return what a reply says of its clients; raise DataError unless it answers this very order."""
    answer = read_json(content.config_records.get(KEY, {}), "answer")
    if (answer.get("round"), answer.get("attempt")) != (order.round, order.attempt):
        raise DataError("the reply is for another round")
    clients = answer.get("clients")
    if not isinstance(clients, dict):
        raise DataError("the reply does not say which clients it is of")
    return clients


def read_update(
    content: RecordDict, about: Mapping[str, Any], client: int, names: Iterable[str], like: Tensor
) -> ClientResult:
    """Return a client's update; raise DataError with what is wrong with it, or ClientFailed if there is none."""
    said = about.get(str(client))
    if not isinstance(said, dict):
        raise DataError("the reply does not have this client's update")
    if "error" in said:
        raise ClientFailed(str(said["error"])[:300])
    loss, samples = said.get("loss"), said.get("samples")
    if not isinstance(loss, int | float) or not abs(loss) <= MAX_LOSS:  # of a NaN too
        raise DataError(f"its training loss is {str(loss)[:40]}")
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise DataError(f"it says that it used {str(samples)[:40]} samples")
    record = content.array_records.get(f"up.{client}")
    if record is None:
        raise DataError("the reply has no arrays for this client")
    up = from_record(record, names, like)
    if (name := up.not_finite()) is not None:
        raise DataError(f"{name} has a NaN or an infinity")
    return ClientResult(up, float(loss), samples)


def absurd(updates: Mapping[int, ClientResult], factor: float) -> dict[int, str]:
    """Return which updates are out of all proportion to the others', and a sentence on each.

    A vector's norm is compared with the median of the norms of the other clients' vectors of that name. Of two updates
    nobody can say which one is absurd, and so it takes three.
    """
    found: dict[int, str] = {}
    if factor == 0 or len(updates) < 3:
        return found
    norms = {client: _norms(result) for client, result in updates.items()}
    for client, own in norms.items():
        for name, norm in own.items():
            usual = median(others[name] for other, others in norms.items() if other != client)
            if usual > 0 and norm > factor * usual:
                found[client] = f"the norm of {name} is {norm:.3g}, {norm / usual:.3g} times the median of the others"
                break
    return found


def _norms(result: ClientResult) -> dict[str, float]:
    return {
        name: float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
        for name, tensor in result.up.tensors().items()
    }
