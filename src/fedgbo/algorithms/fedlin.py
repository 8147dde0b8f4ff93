"""FedLin (Mitra et al., Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse Gradients,
2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgbo.algorithms.mime import Mime
from fedgbo.core import Client, FederatedAlgorithm, Mean, Part, State
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedLin(FederatedAlgorithm):
    """Gradient correction by the mean gradient at x_t, and a rate for each client by its number of local steps.

    first:  every client of the cohort sends ∇f at x_t on all of its samples;  c = their mean
    client: K_i times y <- y - (η / K_i) (g(y) - g(x_t) + c), both g on the same minibatch, from y = x_t
    server: x_{t+1} = mean of y

    This is Mime with SGD and the rate η / K_i, so that all clients move equally far, regardless of their local steps.
    The paper uses exact gradients (full batches) and all clients in every round; its compression of gradients is left
    to transforms.
    """

    optimiser: SGD

    def broadcast(self, server: State) -> State:
        return self._mime.broadcast(server)

    def second_exchange(self, server: State, mean: Mean) -> State:
        return self._mime.second_exchange(server, mean)

    def client_update(self, down: State, client: Client) -> State:
        return Mime(SGD(self.optimiser.lr / client.steps)).client_update(down, client)

    def merge(self, parts: Sequence[Part]) -> tuple[Mean, float]:
        return self._mime.merge(parts)

    @property
    def _mime(self) -> Mime:
        return Mime(self.optimiser)
