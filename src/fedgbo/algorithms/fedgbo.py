"""FedGBO (Mills et al., Accelerating Federated Learning with a Global Biased Optimiser, Algorithm 1, 2022)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgbo.core import AffineOptimiser, Client, ConfigError, FederatedAlgorithm, Mean, Optimiser, Part, State


@dataclass(frozen=True)
class FedGBO(FederatedAlgorithm):
    """Clients train with global statistics that stay fixed; the server recovers the mean gradient from the mean model.

    client: K times y <- y - U(g, s_t), from y = x_t
    server: x_{t+1} = mean of y;  g = I(x_t - x_{t+1}, s_t, K);  s_{t+1} = T(g, s_t)

    Clients download x and s and upload x. With an optimiser that is not affine, or with `inverse=False`, clients also
    upload the sum of their gradients (Section 3.1's alternative): |x| more memory and |x| more upload, and the same
    trajectory where U is affine in g.
    """

    optimiser: Optimiser
    inverse: bool | None = None  # None: whenever the optimiser is affine

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inverse and not isinstance(self.optimiser, AffineOptimiser):
            raise ConfigError(
                f"FedGBO: {type(self.optimiser).__name__} has no inverse step, because it is not an AffineOptimiser; "
                "leave inverse out, and clients send the sums of their gradients"
            )

    def init(self, params: Tensor) -> State:
        return State(params, self.optimiser.init(params))

    def client_update(self, down: State, client: Client) -> State:
        if self._affine() is not None:
            y = client.descend(down.params, self.optimiser, down.stats)
            return State(down.params - y)

        y, total, s = down.params, torch.zeros_like(down.params), self.optimiser.anchor(down.stats, down.params)
        for _ in range(client.steps):
            g = client.gradient(y)
            y, total = self.optimiser.update(y, s, g), total + g
        return State(down.params - y, {"gradient": total})

    def explicit(self, part: Part) -> Mean:
        if (optimiser := self._affine()) is None:
            return part.mean
        start = part.version
        g = optimiser.invert(optimiser.anchor(start.stats, start.params), part.mean.params, part.steps)
        return replace(part.mean, stats={"gradient": part.steps * g})

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        if (optimiser := self._affine()) is not None and "gradient" not in mean.stats:
            g = optimiser.invert(optimiser.anchor(server.stats, server.params), mean.params, steps)
        else:
            g = mean.stats["gradient"] / steps
        return State(server.params - mean.params, self.optimiser.track(server.stats, g))

    @property
    def inverts(self) -> bool:
        """Whether the server recovers the mean gradient by the inverse step."""
        return self._affine() is not None

    def _affine(self) -> AffineOptimiser | None:
        """Return the optimiser if its inverse step is to be used."""
        return self.optimiser if isinstance(self.optimiser, AffineOptimiser) and self.inverse is not False else None
