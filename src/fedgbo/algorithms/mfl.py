"""MFL, Momentum Federated Learning (Liu et al., 2020), with any optimiser."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, State


@dataclass(frozen=True)
class MFL(FederatedAlgorithm):
    """Clients' statistics move with every local step, and are averaged like their models.

    client: K times s <- T(g, s), y <- y - U(s), from y = x_t and s = s_t
    server: x_{t+1} = mean of y;  s_{t+1} = mean of s
    """

    optimiser: Optimiser

    def init(self, params: Tensor) -> State:
        return State(params, self.optimiser.init(params))

    def client_update(self, down: State, client: Client) -> State:
        y, s = down.params, down.stats
        for _ in range(client.steps):
            y, s = self.optimiser.step(y, s, client.gradient(y))
        return State(down.params - y, s)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - mean.params, mean.stats)
