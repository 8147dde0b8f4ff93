"""FedBuff (Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedgbo.algorithms.averaged import Averaged
from fedgbo.algorithms.fedlin import FedLin
from fedgbo.algorithms.mime import Mime
from fedgbo.core import ConfigError, Mean, Number, Part, State, WrappedAlgorithm, not_negative, positive, whole


@dataclass(frozen=True)
class FedBuff(WrappedAlgorithm):
    """Any algorithm with an asynchronous server, which updates its model when enough uploads have arrived.

    client: as in `base`, from the server state of τ updates ago
    server: as in `base`, with η_s mean of (1 + τ)^-a (x_{t-τ} - y) instead of the mean of x_t - y

    `sampler=Asynchronous(...)` determines when uploads arrive; with another sampler τ is 0, and this is `base`. FedGBO
    inverts with the statistics of each version (`base.explicit`). Means of K and of other vectors have the weights
    (1 + τ)^-a. The server keeps its last `max_staleness` states, each with all statistics.
    """

    server_lr: Number = 1.0
    exponent: Number = 0.5  # a; 0 weights all alike
    max_staleness: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)
        not_negative("exponent", self.exponent)
        whole("max_staleness", self.max_staleness, least=0)
        if isinstance(self.base, Averaged):
            raise ConfigError("FedBuff: the average must be outside: Averaged(FedBuff(...))")
        if isinstance(self.base, FedBuff | FedLin | Mime):
            raise ConfigError(f"FedBuff: base must be an algorithm with one exchange per round, not {self.base!r}")

    def init(self, params: Tensor) -> State:
        return self._with_past(self.base.init(params), [self.base.init(params)] * self.max_staleness)

    def broadcast(self, server: State) -> State:
        return self.base.broadcast(self.version(server, 0))

    def version(self, server: State, staleness: int) -> State:
        if staleness > self.max_staleness:
            raise ConfigError(f"clients may be {staleness} server updates late; use FedBuff(max_staleness={staleness})")
        if not staleness:
            return State(server.params, {name: x for name, x in server.stats.items() if not name[0].isdigit()})
        own = f"{staleness}."
        return State.of_tensors({n.removeprefix(own): x for n, x in server.stats.items() if n.startswith(own)})

    def merge(self, parts: Sequence[Part]) -> tuple[Mean, float]:
        means, clients = [part.algorithm.explicit(part) for part in parts], sum(part.mean.clients for part in parts)
        weights = [part.weight * (1 + part.staleness) ** -self.exponent for part in parts]
        params = _sum(weights, [mean.params for mean in means]) * (self.server_lr / sum(part.weight for part in parts))
        stats = {name: _sum(weights, [m.stats[name] for m in means]) / sum(weights) for name in means[0].stats}
        steps = sum(w * part.steps for w, part in zip(weights, parts, strict=True)) / sum(weights)
        return replace(means[0], params=params, stats=stats, clients=clients), steps

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        past = [self.version(server, age) for age in range(self.max_staleness)]
        return self._with_past(self.base.server_update(self.version(server, 0), mean, steps), past)

    def _with_past(self, state: State, past: Sequence[State]) -> State:
        """Return the state with those of 1, 2, ... steps ago among its statistics: `1.params`, `1.stats.m`, ..."""
        named = {f"{age}.{name}": x for age, one in enumerate(past, 1) for name, x in one.tensors().items()}
        return State(state.params, {**state.stats, **named})


def _sum(weights: Sequence[float], vectors: Sequence[Tensor]) -> Tensor:
    return sum((w * x for w, x in zip(weights[1:], vectors[1:], strict=True)), start=weights[0] * vectors[0])
