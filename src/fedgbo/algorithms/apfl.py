"""APFL (Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020), with a fixed mixture."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Number, State, Stats, share
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class APFL(FederatedAlgorithm):
    """Each client mixes the global model with a model v of its own.

    client: K times, from w = x_t:  u = α v + (1 - α) w;  w <- w - η g(w);  v <- v - η α g(u)
    server: x_{t+1} = mean of w

    Both gradients are on the same minibatch; α g(u) is the gradient of f(u) for v. The client's model is
    α v + (1 - α) x_t. α is fixed, as in the paper's algorithm; its rule that also learns α for each client is left out.
    FedJAX steps v along g(u) without the factor α. v starts at x_0.
    """

    optimiser: SGD
    alpha: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        share("alpha", self.alpha)

    def client_state(self, params: Tensor) -> Stats:
        return {"v": params.clone()}

    personalised = True

    def personal(self, params: Tensor, state: Stats) -> Tensor:
        mixed: Tensor = self.alpha * state["v"] + (1 - self.alpha) * params
        return mixed

    def client_update(self, down: State, client: Client) -> State:
        w, v, lr = down.params, client.state["v"], self.optimiser.lr
        for _ in range(client.steps):
            mixed = self.alpha * v + (1 - self.alpha) * w
            w = w - lr * client.gradient(w)
            v = v - lr * self.alpha * client.gradient(mixed, again=True)
        client.state["v"] = v
        return State(down.params - w)
