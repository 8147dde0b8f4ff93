"""What an algorithm sends, keeps and computes, found by running one client's round on a model of a few numbers.

The package's closed forms (closed.py) are the paper's formulas; this is what the code does, for every algorithm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import FederatedAlgorithm, Mean
from fedgbo.core.quadratic import LENGTH, QuadraticClient


@dataclass(frozen=True)
class Trace:
    """One client, one round. Sizes are in units of the model, |x|."""

    down: str
    up: str
    kept: str  # from round to round
    gradients: str  # of minibatches, and of all samples; and losses
    exchanges: int


def trace(algorithm: FederatedAlgorithm) -> Trace:
    """Run one round of one client.

    >>> from fedgbo import SCAFFOLD, SGD
    >>> trace(SCAFFOLD(SGD(lr=0.1)))
    Trace(down='2 |x|', up='2 |x|', kept='|x|', gradients='K', exchanges=1)
    """
    sent, received, client, exchanges = _round(algorithm, 1)
    other = _round(algorithm, 2)[2]
    return Trace(
        down=_size(sent),
        up=_size(received),
        kept=_size(client.state.values()),
        gradients=_gradients(client, other),
        exchanges=exchanges,
    )


def _round(algorithm: FederatedAlgorithm, steps: int) -> tuple[list[Tensor], list[Tensor], QuadraticClient, int]:
    """Return what one client downloads and uploads in a round, the client afterwards, and the number of exchanges."""
    server = algorithm.init(torch.linspace(-1, 1, LENGTH, dtype=torch.float64))
    client = QuadraticClient(0, 0, steps, algorithm.client_state(server.params), algorithm.terms)
    down = algorithm.broadcast(server)
    up = algorithm.client_update(down, client)
    sent, received = [*down.tensors().values()], [*up.tensors().values()]
    second = algorithm.second_exchange(server, Mean(up.params, up.stats))
    if second is None:
        return sent, received, client, 1
    down = algorithm.broadcast(second)
    up = algorithm.client_update(down, client)
    return [*sent, *down.tensors().values()], [*received, *up.tensors().values()], client, 2


def _size(vectors: Iterable[Tensor]) -> str:
    """Return a size such as '2 |x|', '|x| + 1 number' or 'a part of |x|'; 'nothing' for no vectors."""
    lengths = [len(vector) for vector in vectors]
    whole, numbers = lengths.count(LENGTH), lengths.count(1)
    parts = [f"{whole} |x|" if whole > 1 else "|x|"] if whole else []
    parts += ["a part of |x|"] * any(1 < length < LENGTH for length in lengths)
    parts += [f"{numbers} number{'s' if numbers > 1 else ''}"] if numbers else []
    return " + ".join(parts) or "nothing"


def _gradients(one: QuadraticClient, two: QuadraticClient) -> str:
    """Return a count such as 'K', '2 K', 'K + 1' or 'K + all samples', from clients with one and two local steps."""
    times = two.minibatches - one.minibatches
    more, full = one.minibatches - times, one.full_batches
    parts = [f"{times} K" if times > 1 else "K"] if times else []
    parts += [str(more)] if more else []
    parts += [f"{full} x all samples" if full > 1 else "all samples"] if full else []
    parts += ["loss of all samples"] * one.losses
    return " + ".join(parts) or "none"
