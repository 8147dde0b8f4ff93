"""FedProx (Li et al., Federated Optimization in Heterogeneous Networks, 2020)."""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, Number, Proximal, State, Term, not_negative
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedProx(FederatedAlgorithm):
    """FedAvg on losses with a proximal term.

    client: K times y <- y - η (g + μ (y - x_t)), from y = x_t
    server: x_{t+1} = mean of y

    To use the term in another algorithm: `Mimelite(..., objective=Proximal(mu))`.
    """

    optimiser: SGD
    mu: Number

    def __post_init__(self) -> None:
        not_negative("mu", self.mu)
        super().__post_init__()

    @property
    def terms(self) -> tuple[Term, ...]:
        return Proximal(self.mu), *super().terms

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y)
