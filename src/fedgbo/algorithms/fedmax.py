"""FedMAX (Chen, Bhardwaj and Marculescu, FedMAX: Mitigating Activation Divergence for Accurate and
Communication-Efficient Federated Learning, 2020).
"""

from dataclasses import dataclass

from fedgbo.core import Client, FederatedAlgorithm, MaxEntropy, Number, State, Term, not_negative
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class FedMAX(FederatedAlgorithm):
    """FedAvg on losses with a term that makes the last hidden layer's activations similar on all clients.

    client: K times y <- y - η ∇(f + β KL(uniform ‖ softmax(a))), from y = x_t
    server: x_{t+1} = mean of y

    The model's last layer must be a Linear; its input is a. To use the term in another algorithm:
    `FedGBO(..., objective=MaxEntropy(beta))`.
    """

    optimiser: SGD
    beta: Number

    def __post_init__(self) -> None:
        not_negative("beta", self.beta)
        super().__post_init__()

    @property
    def terms(self) -> tuple[Term, ...]:
        return MaxEntropy(self.beta), *super().terms

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.optimiser, down.stats)
        return State(down.params - y)
