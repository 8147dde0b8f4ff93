"""Mime (Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning, 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, Part, State


@dataclass(frozen=True)
class Mime(FederatedAlgorithm):
    """Mimelite with a control variate in every local step, which takes two exchanges per round.

    first:  every client of the cohort sends ∇f at x_t on all of its samples;  c = their mean
    client: K times y <- y - U(g(y) - g(x_t) + c, s_t), both g on the same minibatch, from y = x_t
    server: x_{t+1} = mean of y;  s_{t+1} = T(c, s_t)

    The paper's clients send ∇f again with y. Its mean is c again, so our clients do not.
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
        statistics = {name: stat for name, stat in down.stats.items() if name != "c"}
        y, s = down.params, self.optimiser.anchor(statistics, down.params)
        for _ in range(client.steps):
            g = client.gradient(y) - client.gradient(down.params, again=True) + down.stats["c"]
            y = self.optimiser.update(y, s, g)
        return State(down.params - y)

    def merge(self, parts: Sequence[Part]) -> tuple[Mean, float]:
        return replace(parts[0].mean, stats={"c": parts[0].version.stats["c"]}), parts[0].steps

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - mean.params, self.optimiser.track(server.stats, mean.stats["c"]))
