"""GHBM (Zaccone et al., Communication-Efficient Heterogeneous Federated Learning with Generalized Heavy-Ball Momentum,
2025).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, State, decay, whole
from fedgbo.optimisers.sgd import SGD, ShiftedSGD


@dataclass(frozen=True)
class GHBM(FederatedAlgorithm):
    """Clients add the mean movement of the last τ rounds to their local steps.

    broadcast: x_t and m_t = (x_{t-τ} - x_t) / τ, which is zero for t < τ
    client: K times y <- y - η g - (β / K) m_t, from y = x_t
    server: x_{t+1} = mean of y

    The server keeps the last τ models; clients keep nothing. As in the published code, m is zero until τ rounds are
    completed. With τ = 1 this is heavy-ball momentum: FedCM with an unmixed gradient.
    """

    optimiser: SGD
    beta: Number
    tau: int

    def __post_init__(self) -> None:
        super().__post_init__()
        decay("beta", self.beta)
        whole("tau", self.tau)

    def init(self, params: Tensor) -> State:
        past = {self._name(age): params.clone() for age in range(1, self.tau + 1)}
        return State(params, {**past, "rounds": params.new_zeros(1)})

    def broadcast(self, server: State) -> State:
        full = server.stats["rounds"] >= self.tau
        moved = (server.stats[self._name(self.tau)] - server.params) / self.tau
        return State(server.params, {"m": torch.where(full, moved, 0.0)})

    def client_update(self, down: State, client: Client) -> State:
        lr = self.optimiser.lr
        correction = self.beta / (lr * client.steps) * down.stats["m"]
        y = client.descend(down.params, ShiftedSGD(lr), {"c": correction})
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        past = {self._name(age): server.stats[self._name(age - 1)] for age in range(2, self.tau + 1)}
        stats = {self._name(1): server.params, **past, "rounds": server.stats["rounds"] + 1}
        return State(server.params - mean.params, stats)

    def _name(self, age: int) -> str:
        """Name the model of so many rounds ago."""
        return f"x{age}"
