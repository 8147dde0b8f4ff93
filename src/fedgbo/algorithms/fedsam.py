"""FedSAM (Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, 2022)."""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, SharpnessAware, State, Term, not_negative, positive
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedSAM(FederatedAlgorithm):
    """FedAvg with sharpness-aware gradients.

    client: K times y <- y - η ∇f(y + ρ g / ‖g‖), with g = ∇f(y) on the same minibatch, from y = x_t
    server: x_{t+1} = x_t - η_s mean of (x_t - y)

    To use the rule in another algorithm: `FedGBO(..., objective=SharpnessAware(rho))`.
    """

    optimiser: SGD
    rho: Number
    server_lr: Number = 1.0

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)
        positive("server_lr", self.server_lr)
        super().__post_init__()

    @property
    def terms(self) -> tuple[Term, ...]:
        return SharpnessAware(self.rho), *super().terms

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - self.server_lr * mean.params)
