"""A federated algorithm: pure functions over flat vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_type_hints

from torch import Tensor

from fedgbo.core.client import Client
from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.pipeline import Mean
from fedgbo.core.state import State


@dataclass(frozen=True)
class FederatedAlgorithm(ABC):
    """Base class of federated algorithms: the broadcast, the training of a client, and the server update.

    `objective` adds terms to the clients' loss.
    """

    objective: Term | Sequence[Term] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        name = type(self).__name__
        try:
            hints = get_type_hints(type(self))
        except NameError:  # an annotation names something that is only imported for type checkers
            hints = {}
        for slot, kind in hints.items():
            if isinstance(kind, type) and issubclass(kind, Optimiser) and not isinstance(getattr(self, slot), kind):
                wanted = (
                    "an optimiser such as SGDm(lr=0.1, beta=0.9)" if kind is Optimiser else f"{kind.__name__}(lr=...)"
                )
                raise ConfigError(f"{name}: {slot} must be {wanted}, not {getattr(self, slot)!r}")
        for term in self.terms:
            if not isinstance(term, Term):
                raise ConfigError(
                    f"{name}: objective takes terms such as Proximal(mu=0.1) or MaxEntropy(beta=1.0), not {term!r}"
                )

    def init(self, params: Tensor) -> State:
        """Return the server state before the first round."""
        return State(params)

    def client_state(self, params: Tensor) -> Stats:
        """Return the initial values of the vectors that every client keeps from round to round.

        `params` is x_0, the model that the run starts from.
        `client_update` finds them in `client.state` and may replace them there. By default clients keep nothing.
        """
        return {}

    def broadcast(self, server: State) -> State:
        """Return the state that clients download: by default the whole server state."""
        return server

    @property
    def personalised(self) -> bool:
        """Whether clients use their own models, which `personal` returns.

        If clients have test sets, each is then scored with its own model.
        """
        return False

    def personal(self, params: Tensor, state: Stats) -> Tensor:
        """Return the model that a client uses, given the global model and the vectors that the client keeps.

        By default this is the global model.
        """
        return params

    def second_exchange(self, server: State, mean: Mean) -> State | None:
        """Return the server state that the same cohort trains with once more in this round, after uploads with this
        mean; None for the usual round with one exchange. `merge` gets this state and the mean of the second exchange.
        """
        return None

    def version(self, server: State, staleness: int) -> State:
        """Return the server state of `staleness` rounds ago, from which late clients of an asynchronous run started."""
        if staleness:
            raise ConfigError(
                f"{type(self).__name__} keeps no earlier server states, which asynchronous clients train from; "
                f"wrap it: FedBuff({type(self).__name__}(...))"
            )
        return server

    def explicit(self, part: "Part") -> Mean:
        """Return the mean with all values that depend on the version its clients trained from, such as gradients.

        `server_update` must accept such a mean from any version. By default the mean is returned unchanged.
        """
        return part.mean

    def merge(self, parts: Sequence["Part"]) -> tuple[Mean, float]:
        """Combine the means of a round for `server_update`; by default there is only one."""
        return parts[0].mean, parts[0].steps

    @abstractmethod
    def client_update(self, down: State, client: Client) -> State:
        """Train on one client; return its upload, with the model as the difference x_t - y_K."""

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        """Return the next server state from the combined uploads and the mean number of local steps.

        All vectors are of the model's type. By default the model becomes the mean of the clients' models.
        """
        return State(server.params - mean.params)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the clients' objective besides the task's loss."""
        return (self.objective,) if isinstance(self.objective, Term) else tuple(self.objective)


@dataclass(frozen=True, eq=False)
class Part:
    """What the server sees of the clients of a round that downloaded the same server state."""

    algorithm: FederatedAlgorithm  # with the numbers of the round in which they downloaded
    mean: Mean
    steps: float  # mean number of local steps
    weight: int  # of all their uploads together, by the aggregator
    version: State  # the server state that they downloaded
    staleness: int = 0  # rounds since then


@dataclass(frozen=True)
class WrappedAlgorithm(FederatedAlgorithm):
    """An algorithm around another one, whose clients and objective it keeps."""

    base: FederatedAlgorithm

    def __post_init__(self) -> None:
        if not isinstance(self.base, FederatedAlgorithm):
            raise ConfigError(f"{type(self).__name__}: base must be an algorithm, not {self.base!r}")
        super().__post_init__()

    @property
    def terms(self) -> tuple[Term, ...]:
        return *self.base.terms, *super().terms

    def init(self, params: Tensor) -> State:
        return self.base.init(params)

    def client_state(self, params: Tensor) -> Stats:
        return self.base.client_state(params)

    @property
    def personalised(self) -> bool:
        return self.base.personalised

    def personal(self, params: Tensor, state: Stats) -> Tensor:
        return self.base.personal(params, state)

    def client_update(self, down: State, client: Client) -> State:
        return self.base.client_update(down, client)

    def explicit(self, part: Part) -> Mean:
        return self.base.explicit(part)
