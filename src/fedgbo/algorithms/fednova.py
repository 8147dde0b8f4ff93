"""FedNova (Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020)."""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, Mean, Number, State, positive
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedNova(FederatedAlgorithm):
    """Normalised averaging: clients that take more local steps do not have more weight.

    client: K_i times y <- y - η g, from y = x_t;  d_i = (x_t - y) / K_i
    server: x_{t+1} = x_t - η_s (mean of K_i) (mean of d_i)

    This is the paper's rule for plain SGD, where the norm of a_i is K_i and τ_eff is the mean of K_i. With equal K it
    is FedAvg. Clients upload d_i instead of x_t - y. With `weights="samples"` both means are weighted by samples,
    as in the paper. Its variants with local momentum or a proximal term have another norm of a_i; they are left out.
    """

    optimiser: SGD
    server_lr: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.optimiser, down.stats)
        return State((down.params - y) / client.steps)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(server.params - self.server_lr * steps * mean.params)
