"""FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019), and what its relatives share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgbo.core import Client, ConfigError, FederatedAlgorithm, State, Stats, whole
from fedgbo.optimisers.sgd import SGD


@dataclass(frozen=True)
class PartlyPersonal(FederatedAlgorithm):
    """`personal_part` is a list of pairs (begin, end) of positions in the flat model, which `fedgbo.places(model, ...)`
    returns; or a number n, for the last n parameters of the model, such as those of its last layer.

    The server never changes personal parameters: clients send zeros for them, and all start with those of x_0 (FedPer's
    paper draws them for each client).
    """

    optimiser: SGD
    personal_part: Sequence[Sequence[int]] | int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.personal_part, str) or not isinstance(self.personal_part, Sequence):
            whole("personal_part", self.personal_part)
            return
        for pair in self.personal_part:
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise ConfigError(f"personal_part must be pairs (begin, end) of positions in the model, not {pair!r}")
            whole("personal_part's begin", pair[0], least=0)
            whole("personal_part's end", pair[1], least=pair[0] + 1)

    def mask(self, params: Tensor) -> Tensor:
        """Return which parameters are personal."""
        mask, part = torch.zeros_like(params, dtype=torch.bool), self.personal_part
        for begin, end in part if isinstance(part, Sequence) else [(len(params) - part, len(params))]:
            if begin < 0 or end > len(params):
                raise ConfigError(f"personal_part is {part}, but the model has {len(params)} parameters")
            mask[begin:end] = True
        return mask

    def client_state(self, params: Tensor) -> Stats:
        return {"own": params[self.mask(params)]}

    personalised = True

    def personal(self, params: Tensor, state: Stats) -> Tensor:
        return params.masked_scatter(self.mask(params), state["own"])

    def upload(self, down: State, client: Client, y: Tensor) -> State:
        """Keep the personal part of y; return the difference of the rest."""
        mask = self.mask(y)
        client.state["own"] = y[mask]
        return State((down.params - y).masked_fill(mask, 0.0))


@dataclass(frozen=True)
class FedPer(PartlyPersonal):
    """FedAvg on the body of a model; each client keeps its own head.

    client: K times y <- y - η g, from y = (body of x_t, own head);  keeps the head
    server: body = mean of bodies
    """

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(self.personal(down.params, client.state), self.optimiser, down.stats)
        return self.upload(down, client, y)
