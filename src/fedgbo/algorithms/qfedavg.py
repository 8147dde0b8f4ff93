"""q-FedAvg (Li et al., Fair Resource Allocation in Federated Learning, 2020)."""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, State, not_negative
from fedgbo.optimisers.sgd import SGD

TINY = 1e-10  # the least loss: 0^(q - 1) is not defined for q < 1. The published code adds it to every loss


@dataclass(frozen=True)
class QFedAvg(FederatedAlgorithm):
    """Clients with a higher loss have more weight: q = 0 is FedAvg, a larger q makes accuracies more uniform.

    client: F = loss at x_t on all samples;  K times y <- y - η g, from y = x_t;  d = (x_t - y) / η
    sends:  F^q d  and  h = q F^(q - 1) ‖d‖² + F^q / η
    server: x_{t+1} = x_t - (mean of F^q d) / (mean of h)

    1 / η is the paper's estimate L of the Lipschitz constant. F is the task's loss, without objective terms. The paper
    samples clients by their share of samples; here the run's sampler draws them. h is one number.
    """

    optimiser: SGD
    q: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("q", self.q)

    def client_update(self, down: State, client: Client) -> State:
        loss = max(client.loss(down.params), TINY)
        d = (down.params - client.descend(down.params, self.optimiser, down.stats)) / self.optimiser.lr
        h = self.q * loss ** (self.q - 1) * (d @ d) + loss**self.q / self.optimiser.lr
        return State(loss**self.q * d, {"h": h.reshape(1)})

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - mean.params / mean.stats["h"])
