"""What an algorithm sends, keeps and computes, found by running one client's round on a model of a few numbers.

The package's closed forms (closed.py) are the paper's formulas; this is what the code does, for every algorithm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import ConfigError, FederatedAlgorithm, FedGBOError, Mean, State
from fedgbo.core.check import LENGTH, QuadraticClient


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
    start = torch.linspace(-1, 1, LENGTH, dtype=torch.float64)
    sent, received, client, exchanges = _round(algorithm, 1, start)
    other = _round(algorithm, 2, start)[2]
    return Trace(
        down=_size(x for down in sent for x in down.tensors().values()),
        up=_size(x for up in received for x in up.tensors().values()),
        kept=_size(client.state.values()),
        gradients=_gradients(client, other),
        exchanges=exchanges,
    )


@dataclass(frozen=True)
class Load:
    """What a client's round costs, as far as a virtual clock counts it."""

    sent: Sequence[State]  # downloads, one for each exchange
    received: Sequence[State]  # uploads, before the transforms
    per_step: int  # minibatches of a local step
    more: int  # minibatches of a round besides
    full: int  # passes over all of the client's samples

    def samples(self, steps: int, batch: int, everything: int) -> int:
        """Return the sample gradients, for minibatches of this size and so many samples of the client."""
        return (self.per_step * steps + self.more) * batch + self.full * everything


def load_of(algorithm: FederatedAlgorithm, params: Tensor) -> Load:
    """Run two rounds of one client, with one and with two local steps, on a model as long as `params`.

    A virtual clock needs this before the first round, and so before any real client has trained.
    """
    try:
        sent, received, one, _ = _round(algorithm, 1, params)
        two = _round(algorithm, 2, params)[2]
    except FedGBOError:
        raise
    except Exception as error:
        name, why = type(algorithm).__name__, f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"a virtual clock counts what {name} computes and sends on a client without data, where it fails: {why}; "
            "make it work there, or leave out seconds_per_sample and bandwidth"
        ) from error
    per_step = two.minibatches - one.minibatches
    received = [up.to(params.dtype) for up in received]
    return Load(sent, received, per_step, one.minibatches - per_step, one.full_batches)


def _round(
    algorithm: FederatedAlgorithm, steps: int, params: Tensor
) -> tuple[list[State], list[State], QuadraticClient, int]:
    """Return what one client downloads and uploads in a round, the client afterwards, and the number of exchanges."""
    server = algorithm.init(params)
    state = algorithm.client_state(server.params)
    client = QuadraticClient(0, 0, steps, state, algorithm.terms, params.numel())
    down = algorithm.broadcast(server)
    up = algorithm.client_update(down, client)
    second = algorithm.second_exchange(server, Mean(up.params, up.stats))
    if second is None:
        return [down], [up], client, 1
    again = algorithm.broadcast(second)
    return [down, again], [up, algorithm.client_update(again, client)], client, 2


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
