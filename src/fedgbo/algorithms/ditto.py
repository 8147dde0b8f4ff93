"""Ditto (Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021)."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Number, State, Stats, not_negative
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class Ditto(FederatedAlgorithm):
    """FedAvg, and on each client a personal model v that is pulled towards the global one.

    client: K times y <- y - η g(y), from y = x_t;  K times v <- v - η (g(v) + λ (v - x_t))
    server: x_{t+1} = mean of y

    With λ = 0 v is trained on the client alone. v takes as many local steps as y, on the minibatches after those of y:
    the order of the paper's Algorithm 1. Its published code takes each step of v and of y on the same minibatch.
    v starts at x_0.
    """

    optimiser: SGD
    lam: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("lam", self.lam)

    def client_state(self, params: Tensor) -> Stats:
        return {"v": params.clone()}

    personalised = True

    def personal(self, params: Tensor, state: Stats) -> Tensor:
        return state["v"]

    def client_update(self, down: State, client: Client) -> State:
        y, v = client.descend(down.params, self.optimiser, down.stats), client.state["v"]
        for _ in range(client.steps):
            v = v - self.optimiser.lr * (client.gradient(v) + self.lam * (v - down.params))
        client.state["v"] = v
        return State(down.params - y)
