"""Which clients take part in a round."""

from dataclasses import dataclass

import numpy as np

from fedgbo.core import ConfigError, Sampler, positive, whole
from fedgbo.pipeline.clock import Asynchronous, Deadline


@dataclass(frozen=True)
class FixedSize(Sampler):
    """The same number of clients in every round, each with the same chance, without replacement."""

    clients_per_round: int

    def __post_init__(self) -> None:
        whole("clients_per_round", self.clients_per_round)

    def sample(self, clients: int, t: int, rng: np.random.Generator) -> list[int]:
        if self.clients_per_round > clients:
            raise ConfigError(f"clients_per_round is {self.clients_per_round}, but there are {clients} clients")
        cohort: list[int] = np.sort(rng.choice(clients, self.clients_per_round, replace=False)).tolist()
        return cohort


@dataclass(frozen=True)
class Poisson(Sampler):
    """Every client takes part with probability `rate`, independently of the others. Privacy accounting assumes this.

    The size of the cohort varies. A round in which nobody takes part changes nothing.
    """

    rate: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        if self.rate > 1:
            raise ConfigError(f"rate must be a probability, above 0 and at most 1, not {self.rate!r}")

    def sample(self, clients: int, t: int, rng: np.random.Generator) -> list[int]:
        cohort: list[int] = np.flatnonzero(rng.random(clients) < self.rate).tolist()
        return cohort


SAMPLERS: dict[str, type[Sampler]] = {
    "asynchronous": Asynchronous,
    "deadline": Deadline,
    "fixedsize": FixedSize,
    "poisson": Poisson,
}
