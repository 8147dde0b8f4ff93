"""MoFedSAM (Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, 2022)."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.algorithms.fedcm import FedCM
from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, SharpnessAware, State, Term, not_negative
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class MoFedSAM(FederatedAlgorithm):
    """FedCM with sharpness-aware gradients.

    client: K times y <- y - η (α ∇f(y + ρ g / ‖g‖) + (1 - α) m_t), with g = ∇f(y) on the same minibatch, from y = x_t
    server: m_{t+1} = mean of (x_t - y) / (η K);  x_{t+1} = x_t - η_s mean of (x_t - y)

    The paper writes β for the share α of the gradient, and its η_g is our η_s η K, as for FedCM.
    """

    optimiser: SGD
    alpha: Number
    rho: Number
    server_lr: Number = 1.0

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)
        super().__post_init__()
        _ = self._fedcm

    @property
    def _fedcm(self) -> FedCM:
        return FedCM(self.optimiser, self.alpha, self.server_lr)

    @property
    def terms(self) -> tuple[Term, ...]:
        return SharpnessAware(self.rho), *super().terms

    def init(self, params: Tensor) -> State:
        return self._fedcm.init(params)

    def client_update(self, down: State, client: Client) -> State:
        return self._fedcm.client_update(down, client)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return self._fedcm.server_update(server, mean, steps)
