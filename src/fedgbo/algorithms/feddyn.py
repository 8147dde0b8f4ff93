"""FedDyn (Acar et al., Federated Learning Based on Dynamic Regularization, 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, Proximal, State, Stats, Term, positive
from fedgbo.optimisers.sgd import SGD, ShiftedSGD


@dataclass(frozen=True)
class FedDyn(FederatedAlgorithm):
    """A linear and a proximal term align the clients' optima with the global one: h on the server, h_i on client i.

    client: K times y <- y - η (g - h_i + α (y - x_t)), from y = x_t;  h_i <- h_i - α (y - x_t)
    server: h <- h + α |S| / N mean of (x_t - y);  x_{t+1} = mean of y - h / α

    h and h_i start at zero. The paper minimises the clients' problem exactly; we take K local steps, as the published
    code does. That code also divides α by a client's share of the samples, adds weight decay and clips gradients, none
    of which is in the paper's algorithm; all are left out.
    """

    optimiser: SGD
    alpha: Number

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)
        super().__post_init__()

    @property
    def terms(self) -> tuple[Term, ...]:
        return Proximal(self.alpha), *super().terms

    def init(self, params: Tensor) -> State:
        return State(params, {"h": torch.zeros_like(params)})

    def client_state(self, params: Tensor) -> Stats:
        return {"h": torch.zeros_like(params)}

    def broadcast(self, server: State) -> State:
        return State(server.params)

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, ShiftedSGD(self.optimiser.lr), {"c": -client.state["h"]})
        moved = down.params - y
        client.state["h"] = client.state["h"] + self.alpha * moved
        return State(moved)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        h = server.stats["h"] + self.alpha * mean.clients / mean.population * mean.params
        return State(server.params - mean.params - h / self.alpha, {"h": h})
