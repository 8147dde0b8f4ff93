"""FedGBO (Mills et al., Accelerating Federated Learning with a Global Biased Optimiser, Algorithm 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.state import State


@dataclass(frozen=True)
class FedGBO(FederatedAlgorithm):
    """Clients train with global statistics that stay fixed; the server recovers the mean gradient from the mean model.

    client: K times y <- y - U(g, s_t), from y = x_t
    server: x_{t+1} = mean of y;  g = I(x_t - x_{t+1}, s_t, K);  s_{t+1} = T(g, s_t)

    Clients download x and s and upload x. An optimiser without an inverse step, or `inverse=False`, makes clients keep
    and upload the sum of their gradients too (Section 3.1's alternative): |x| more memory and |x| more upload, the same
    trajectory where U is affine in g.
    """

    optimiser: Optimiser
    inverse: bool | None = None  # None: whenever the optimiser has an inverse step

    elementwise = True

    def init(self, params: Tensor) -> State:
        """Return x_0 and s_0."""
        return State(params, self.optimiser.init(params))

    def client_update(self, down: State, client: Client) -> State:
        """Return x_t - y_K (and the sum of the gradients, where there is no inverse step)."""
        if self.inverts:
            y = client.descend(down.params, self.optimiser, down.stats)
            return State(down.params - y)

        y, total = down.params, torch.zeros_like(down.params)
        for _ in range(client.steps):
            g = client.gradient(y)
            y, total = self.optimiser.update(y, down.stats, g), total + g
        return State(down.params - y, {"gradient": total})

    def server_update(self, server: State, mean: State, steps: float) -> State:
        """Average, invert, track."""
        if self.inverts:
            stats = self.optimiser.learn(server.stats, mean.params, steps)  # T(I(x_t - x_{t+1}, s_t, K), s_t)
        else:
            stats = self.optimiser.track(server.stats, mean.stats["gradient"] / steps)
        return State(server.params - mean.params, stats)

    @property
    def inverts(self) -> bool:
        """Whether the server recovers the mean gradient by the inverse step."""
        return self.optimiser.has_inverse if self.inverse is None else self.inverse

    @property
    def affine(self) -> bool:
        """The mean difference is x_t less the mean of y_K; gradients on the way are each client's own."""
        return self.inverts

    @property
    def step_ops(self) -> int:
        """The optimiser's, with fixed statistics; one addition more where clients sum their gradients."""
        return self.optimiser.fixed_ops + sum(term.ops for term in self.terms) + (not self.inverts)
