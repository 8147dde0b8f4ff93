"""Mime (Karimireddy et al., Breaking the centralized barrier for cross-device federated learning, 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, State, Stats


@dataclass(frozen=True)
class Mime(FederatedAlgorithm):
    """Mimelite with a control variate in every local step, which takes two exchanges a round.

    first:  every client of the cohort sends ∇f at x_t on all of its samples;  c = their mean
    client: K times y <- y - U(g(y) - g(x_t) + c, s_t), both g on the same minibatch, from y = x_t
    server: x_{t+1} = mean of y;  s_{t+1} = T(c, s_t)

    The paper's clients send ∇f once more with y; as its mean is c again, ours do not.
    """

    optimiser: Optimiser

    def init(self, params: Tensor) -> State:
        return State(params, self.optimiser.init(params))

    def broadcast(self, server: State) -> State:
        return server if "c" in server.stats else State(server.params)

    def second_exchange(self, server: State, mean: Mean) -> State:
        return State(server.params, {**server.stats, "c": mean.params})

    def client_update(self, down: State, client: Client) -> State:
        if "c" not in down.stats:
            return State(client.full_gradient(down.params))
        y, s = down.params, self.optimiser.anchor(_without_c(down), down.params)
        for _ in range(client.steps):
            g = client.gradient(y) - client.gradient(down.params, again=True) + down.stats["c"]
            y = self.optimiser.update(y, s, g)
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - mean.params, self.optimiser.track(_without_c(server), server.stats["c"]))


def _without_c(state: State) -> Stats:
    return {name: stat for name, stat in state.stats.items() if name != "c"}
