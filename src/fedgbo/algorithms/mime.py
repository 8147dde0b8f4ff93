"""What Mimelite and MimeXlite have in common (Karimireddy et al., Mime, 2020)."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.state import State


@dataclass(frozen=True)
class Mime(FederatedAlgorithm):
    """Fixed global statistics, tracked with gradients taken at the global model."""

    optimiser: Optimiser

    elementwise = True

    @abstractmethod
    def unbiased_gradient(self, params: Tensor, client: Client) -> Tensor:
        """Return the gradient at x_t that the client sends up for tracking."""

    def init(self, params: Tensor) -> State:
        """Return x_0 and s_0."""
        return State(params, self.optimiser.init(params))

    def client_update(self, down: State, client: Client) -> State:
        """Return x_t - y_K and the gradient at x_t."""
        gradient = self.unbiased_gradient(down.params, client)
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y, {"gradient": gradient})

    def server_update(self, server: State, mean: State, steps: float) -> State:
        """Average, track."""
        s = self.optimiser.track(server.stats, mean.stats["gradient"])
        return State(server.params - mean.params, s)

    @property
    def step_ops(self) -> int:
        """The optimiser's, with fixed statistics."""
        return self.optimiser.fixed_ops + sum(term.ops for term in self.terms)
