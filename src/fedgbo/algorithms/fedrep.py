"""FedRep (Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021)."""

from dataclasses import dataclass

import torch

from fedgbo.algorithms.fedper import PartlyPersonal
from fedgbo.core import Client, State, whole


@dataclass(frozen=True)
class FedRep(PartlyPersonal):
    """Each client first fits its own head to the shared body, then the body to its head.

    client: `head_steps` times head <- head - η g, from (body of x_t, own head);  then K times body <- body - η g
    server: body = mean of bodies

    K counts the steps of the body. The paper's experiments take one epoch for the body after ten for the head.
    """

    head_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("head_steps", self.head_steps)

    def client_update(self, down: State, client: Client) -> State:
        y, mask = self.personal(down.params, client.state), self.mask(down.params)
        for _ in range(self.head_steps):
            y = y - self.optimiser.lr * torch.where(mask, client.gradient(y), 0.0)
        for _ in range(client.steps):
            y = y - self.optimiser.lr * torch.where(mask, 0.0, client.gradient(y))
        return self.upload(down, client, y)
