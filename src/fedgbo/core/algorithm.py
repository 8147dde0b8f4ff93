"""A federated algorithm: four pure functions over flat vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, get_type_hints

from torch import Tensor

from fedgbo.core.client import Client
from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.state import State


@dataclass(frozen=True)
class FederatedAlgorithm(ABC):
    """What the server sends, what a client does with it, and what the server makes of the mean of the answers.

    `objective` adds terms to the clients' loss, whatever the algorithm.
    """

    objective: Term | Sequence[Term] = field(default=(), kw_only=True)

    # Whether `server_update` treats every number by itself, as far as its optimiser does, which is asked too. A class
    # speaks for the `server_update` that it wrote. The step is then taken piece by piece, in the processor's cache.
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        for slot, kind in get_type_hints(type(self)).items():
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
        """Return the server's state before the first round."""
        return State(params)

    def broadcast(self, server: State) -> State:
        """Return all that clients get to see: by default the whole state."""
        return server

    @abstractmethod
    def client_update(self, down: State, client: Client) -> State:
        """Train on one client; return what it sends up, the model as the difference x_t - y_K."""

    def server_update(self, server: State, mean: State, steps: float) -> State:
        """Return the next state from the mean of what came up and the mean number of local steps.

        All vectors are float64; what is returned is rounded to the model's type. By default the model becomes the mean
        of the clients' models.
        """
        return State(server.params - mean.params)

    @property
    def affine(self) -> bool:
        """Whether the mean of what clients send up is what their mean would send up.

        That is so where `client_update` asks the client for `descend`, `full_gradient` or `gradient` at `down.params`
        and nothing else, and what it returns is affine in the answers. An engine may then answer once for a whole
        cohort, with the mean of the clients' answers, instead of asking client by client. A class speaks only for
        itself: a subclass that does not say so again is asked client by client.
        """
        return False

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the clients' objective beside the task's loss."""
        return (self.objective,) if isinstance(self.objective, Term) else tuple(self.objective)

    @property
    def step_ops(self) -> int:
        """Operations per parameter and local step beside the gradient, as the paper counts them."""
        return 2 + sum(term.ops for term in self.terms)
