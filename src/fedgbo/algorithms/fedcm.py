"""FedCM (Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, State, positive, share
from fedgbo.optimisers.sgd import SGD
from fedgbo.optimisers.sgdm import SGDm


@dataclass(frozen=True)
class FedCM(FederatedAlgorithm):
    """Clients mix every gradient with the mean direction m of the round before, from m = 0.

    client: K times y <- y - η (α g + (1 - α) m_t), from y = x_t
    server: m_{t+1} = mean of (x_t - y) / (η K);  x_{t+1} = x_t - η_s mean of (x_t - y)

    The paper writes x_{t+1} = x_t - η_g m_{t+1}; our server_lr η_s is its η_g / (η K). With η_s = 1, FedCM is FedGBO
    with SGDm and β = 1 - α, where the inverse step and the tracking cancel. With unequal K, K is its mean.
    """

    optimiser: SGD
    alpha: Number
    server_lr: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        share("alpha", self.alpha)
        positive("server_lr", self.server_lr)

    def init(self, params: Tensor) -> State:
        return State(params, {"m": torch.zeros_like(params)})

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, SGDm(self.optimiser.lr, beta=1 - self.alpha), down.stats)
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        m = mean.params / (self.optimiser.lr * steps)
        return State(server.params - self.server_lr * mean.params, {"m": m})
