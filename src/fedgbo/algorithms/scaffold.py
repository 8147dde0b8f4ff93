"""SCAFFOLD (Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, State, Stats, positive
from fedgbo.optimisers.sgd import SGD, ShiftedSGD


@dataclass(frozen=True)
class SCAFFOLD(FederatedAlgorithm):
    """Control variates correct the drift of every local step: c on the server, c_i on client i, from zero.

    client: K times y <- y - η (g - c_i + c), from y = x_t;  c_i' = c_i - c + (x_t - y) / (η K)
    server: x_{t+1} = x_t - η_s mean of (x_t - y);  c <- c + |S| / N mean of (c_i' - c_i)

    c_i' is the paper's option II, which costs no further gradient. Clients download two vectors and upload two.
    """

    optimiser: SGD
    server_lr: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)

    def init(self, params: Tensor) -> State:
        return State(params, {"c": torch.zeros_like(params)})

    def client_state(self, params: Tensor) -> Stats:
        return {"c": torch.zeros_like(params)}

    def client_update(self, down: State, client: Client) -> State:
        own, correction = client.state["c"], down.stats["c"] - client.state["c"]
        y = client.descend(down.params, ShiftedSGD(self.optimiser.lr), {"c": correction})
        moved = down.params - y
        client.state["c"] = moved / (self.optimiser.lr * client.steps) - correction
        return State(moved, {"c": client.state["c"] - own})

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        c = server.stats["c"] + mean.clients / mean.population * mean.stats["c"]
        return State(server.params - self.server_lr * mean.params, {"c": c})
