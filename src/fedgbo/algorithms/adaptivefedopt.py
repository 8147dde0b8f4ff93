"""AdaptiveFedOpt (Reddi et al., Adaptive Federated Optimization, 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, State
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class AdaptiveFedOpt(FederatedAlgorithm):
    """Only the server has an optimiser with statistics, which uses the mean difference as a gradient.

    client: K times y <- y - η g, from y = x_t
    server: g = mean of x_t - y;  one step of the server's optimiser with g

    With server=SGD(lr=1.0) this is FedAvg.
    """

    client: SGD
    server: Optimiser

    def init(self, params: Tensor) -> State:
        return State(params, self.server.init(params))

    def broadcast(self, server: State) -> State:
        return State(server.params)

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.client, down.stats)
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(*self.server.step(server.params, server.stats, mean.params))
