"""MimeXlite: Mimelite with minibatch gradients (the paper, Section 5.2)."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.algorithms.mime import Mime
from fedgbo.core.client import Client


@dataclass(frozen=True)
class MimeXlite(Mime):
    """Fixed global statistics, tracked with minibatch gradients.

    client: ∇f = minibatch gradient at x_t;  K times y <- y - U(g, s_t), from y = x_t
    server: x_{t+1} = mean of y;  s_{t+1} = T(mean of ∇f, s_t)
    """

    def unbiased_gradient(self, params: Tensor, client: Client) -> Tensor:
        """Return ∇f, on one minibatch."""
        return client.gradient(params)

    @property
    def affine(self) -> bool:
        """Both the difference and the gradient are means of the clients'."""
        return True
