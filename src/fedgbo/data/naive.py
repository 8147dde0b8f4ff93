"""What the packed form of the data saves, measured beside the naive one: each client's samples as whole tensors."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedgbo.core.checks import whole
from fedgbo.data.federated import FederatedData
from fedgbo.data.samples import Samples
from fedgbo.data.store import Array


@dataclass(frozen=True)
class Memory:
    """Bytes of all training and test samples, kept in the two ways.

    The naive number is measured on the `built` samples that were made into tensors, and scaled by the number of
    samples, which is exact, as each takes the same number of bytes. Python's own objects are counted in neither.
    """

    samples: int
    built: int
    naive: int
    packed: int

    @property
    def ratio(self) -> float:
        """How many times larger the naive form is."""
        return self.naive / self.packed


def compare_memory(data: FederatedData, clients: int = 3) -> Memory:
    """Build the first `clients` clients the naive way, and compare; for data whose samples are all of one shape."""
    whole("clients", clients)
    built = [
        data.train.batch(np.arange(data.offsets[c], data.offsets[c + 1])) for c in range(min(clients, data.clients))
    ]
    count = sum(len(targets) for _, targets in built)
    kept = sum(tensor.element_size() * tensor.nelement() for pair in built for tensor in pair)
    samples = len(data.train) + len(data.test)
    return Memory(samples, count, naive=kept * samples // count, packed=packed_bytes(data))


def packed_bytes(data: FederatedData) -> int:
    """Return the bytes of the arrays behind the data, each counted once, be it in memory or mapped from a file."""
    parts = {id(part): int(part.nbytes) for samples in (data.train, data.test) for part in _parts(samples)}
    return sum(parts.values()) + int(data.offsets.nbytes)


def _parts(samples: Samples) -> list[Array | Tensor]:
    return [value for value in vars(samples).values() if isinstance(value, np.ndarray | Tensor)]
