"""FedAvg (McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017)."""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, State
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedAvg(FederatedAlgorithm):
    """Averages client models.

    client: K times y <- y - η g, from y = x_t
    server: x_{t+1} = mean of y

    Every client counts the same, as in the paper of FedGBO; `fedgbo.run(..., weights="samples")` weights clients by
    their numbers of samples, as McMahan et al. do.
    """

    optimiser: SGD

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y)
