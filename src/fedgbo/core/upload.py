"""What travels from the clients to the server: one upload per client, and what the server sees of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedgbo.core.state import State


@dataclass(frozen=True, eq=False)
class Upload:
    """The upload of one client in one round. Only `state` and `samples` come from the algorithm."""

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
    """The combined uploads of a round, the number of clients that took part, and the number of all clients."""

    params: Tensor  # (P,), of the differences x_t - y_K
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # each (P,), or (1,) for one number
    clients: int = 1  # whose uploads were combined
    population: int = 1  # N, all clients of the task
    buffers: Tensor | None = None  # (B,), of the differences that training made to the model's buffers
