"""What travels from the clients to the server: one upload per client, and what the server sees of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedgbo.core.state import State


@dataclass(frozen=True, eq=False)
class Upload:
    """One client's answer in one round. Only `state` and `samples` are the algorithm's; the rest is bookkeeping."""

    client: int
    state: State  # the model as the difference x_t - y_K, and statistics
    steps: int  # K
    samples: int  # n, the client's training samples
    loss: float  # mean training loss over the client's minibatches
    nbytes: int  # that travel; a transform that compresses sets it
    gradients: int = 0  # sample gradients that the client computed
    operations: float | None = 0.0  # other operations per parameter in this round; None: not counted


@dataclass(frozen=True, eq=False)
class Mean:
    """What the server sees of a round: combined vectors, and from how many of all clients they are."""

    params: Tensor  # (P,), of the differences x_t - y_K
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # each (P,), or (1,) for one number
    clients: int = 1  # whose uploads were combined
    population: int = 1  # N, all clients of the task
    buffers: Tensor | None = None  # (B,), of the differences that training made to the model's buffers
