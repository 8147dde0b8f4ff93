"""Averages of the server's models over rounds (Polyak and Juditsky, Acceleration of Stochastic Approximation, 1992)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgbo.core import ConfigError, Mean, Number, Part, State, WrappedAlgorithm, decay


@dataclass(frozen=True)
class Averaged(WrappedAlgorithm):
    """Any algorithm, with an exponential moving average of the server's models as the result.

    client: as in `base`, from the latest model
    server: as in `base`;  a_{t+1} = d a_t + (1 - d) x_{t+1}, with d = min(decay, (t + 1) / (t + 10))

    The small d of the first rounds makes a_t forget x_0. The average is the server's model: it is evaluated, saved and
    exported. Clients download and train the latest model, which is the statistic `latest`, so training is that of
    `base`, and nothing more is sent.
    """

    decay: Number = 0.99  # 0: the latest model

    def __post_init__(self) -> None:
        super().__post_init__()
        decay("decay", self.decay)
        if isinstance(self.base, Averaged):
            raise ConfigError(f"Averaged: base must be an algorithm without an average of its own, not {self.base!r}")

    def init(self, params: Tensor) -> State:
        base = self.base.init(params)
        return State(params, {**base.stats, "latest": base.params, "averaged": params.new_zeros(1)})

    def broadcast(self, server: State) -> State:
        return self.base.broadcast(_latest(server))

    def version(self, server: State, staleness: int) -> State:
        if server.buffers is not None:
            raise ConfigError(
                "Averaged: the model has buffers that training changes, such as BatchNorm's, which would be those of "
                "the latest model and not of the average; use GroupNorm or LayerNorm"
            )
        return self.base.version(_latest(server), staleness)

    def second_exchange(self, server: State, mean: Mean) -> State | None:
        return self.base.second_exchange(_latest(server), mean)

    def explicit(self, part: Part) -> Mean:
        return self.base.explicit(replace(part, version=_latest(part.version)))

    def merge(self, parts: Sequence[Part]) -> tuple[Mean, float]:
        return self.base.merge(parts)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        base, t = self.base.server_update(_latest(server), mean, steps), server.stats["averaged"]
        d = torch.clamp((t + 1) / (t + 10), max=self.decay)
        average = d * server.params + (1 - d) * base.params
        return State(average, {**base.stats, "latest": base.params, "averaged": t + 1})


def _latest(server: State) -> State:
    """Return the state of `base`; it is unchanged if it is one already."""
    stats = {name: x for name, x in server.stats.items() if name not in ("latest", "averaged")}
    return replace(server, params=server.stats.get("latest", server.params), stats=stats)
