"""Mimelite (Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning, 2021), and
MimeXlite, its variant with minibatches (Section 5.2 of the paper of FedGBO).
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, State


@dataclass(frozen=True)
class _Mime(FederatedAlgorithm):
    """Fixed global statistics, tracked with gradients at the global model.

    client: ∇f = a gradient at x_t;  K times y <- y - U(g, s_t), from y = x_t
    server: x_{t+1} = mean of y;  s_{t+1} = T(mean of ∇f, s_t)
    """

    optimiser: Optimiser

    @abstractmethod
    def unbiased_gradient(self, params: Tensor, client: Client) -> Tensor:
        """Return the gradient at x_t that the client uploads for tracking."""

    def init(self, params: Tensor) -> State:
        return State(params, self.optimiser.init(params))

    def client_update(self, down: State, client: Client) -> State:
        gradient = self.unbiased_gradient(down.params, client)
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y, {"gradient": gradient})

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        s = self.optimiser.track(server.stats, mean.stats["gradient"])
        return State(server.params - mean.params, s)


@dataclass(frozen=True)
class Mimelite(_Mime):
    """Fixed global statistics, tracked with gradients on all of a client's samples."""

    def unbiased_gradient(self, params: Tensor, client: Client) -> Tensor:
        return client.full_gradient(params)


@dataclass(frozen=True)
class MimeXlite(_Mime):
    """Fixed global statistics, tracked with gradients on one minibatch."""

    def unbiased_gradient(self, params: Tensor, client: Client) -> Tensor:
        return client.gradient(params)
