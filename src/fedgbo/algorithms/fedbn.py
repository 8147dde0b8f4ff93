"""FedBN (Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021)."""

from dataclasses import dataclass

from fedgbo.algorithms.fedper import PartlyPersonal
from fedgbo.core import Client, State


@dataclass(frozen=True)
class FedBN(PartlyPersonal):
    """FedAvg where each client keeps its own normalisation layers, which are the personal part.

    client: K times y <- y - η g, from y = (other layers of x_t, own normalisation);  keeps the normalisation
    server: other layers = mean of other layers

    The published FedBN also keeps the running statistics of BatchNorm local: give the task buffers="local". Here,
    clients keep the weights and biases of normalisation layers.
    """

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(self.personal(down.params, client.state), self.optimiser, down.stats)
        return self.upload(down, client, y)
