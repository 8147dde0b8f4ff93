"""FedAvg (McMahan et al., 2017)."""

from dataclasses import dataclass

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.state import State
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedAvg(FederatedAlgorithm):
    """Averages client models.

    client: K times y <- y - η g, from y = x_t
    server: x_{t+1} = mean of y
    """

    optimiser: SGD

    @property
    def affine(self) -> bool:
        """The mean difference is x_t less the mean of y_K."""
        return True

    def client_update(self, down: State, client: Client) -> State:
        """Return x_t - y_K."""
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y)
