"""Samplers on a virtual clock: clients have speeds, and rounds take as long as the clients that they wait for.

Speeds are a function of the sampler's settings alone, so that a run can be resumed and repeated.
"""

import csv
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgbo.core import ConfigError, Sampler, not_negative, positive, stream, whole


class Arrivals(NamedTuple):
    """The uploads that one step of an asynchronous server waits for."""

    clients: list[int]  # in ascending order
    staleness: list[int]  # how many server steps were made since each of them downloaded
    seconds: float  # on the virtual clock, when the last of them arrived


def seconds_of(clients: Sequence[int], spread: float, trace: str | None, seed: int) -> dict[int, float]:
    """Return how long a round takes each of the clients: e^(spread z) with a normal z, or a column of a CSV file.

    The file has a heading `client,seconds` and a row for each client.
    """
    if trace is None:
        return {client: float(np.exp(spread * stream(seed, "speed", client).normal())) for client in clients}
    try:
        with Path(trace).open(encoding="utf-8", newline="") as file:
            found = {int(row["client"]): float(row["seconds"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the trace {trace} must be a CSV file with the columns client,seconds: {error!r}") from error
    if missing := [client for client in clients if not 0 < found.get(client, 0) < math.inf]:
        raise ConfigError(f"the trace {trace} has no number of seconds above 0 for client {missing[0]}")
    return {client: found[client] for client in clients}


@dataclass(frozen=True)
class Deadline(Sampler):
    """Draws `over_select` additional clients, and keeps the fastest ones that finish before the deadline.

    With `partial`, clients that would finish late are kept too, and take as many of their local steps as they can, at
    least one. Without it, a round in which no client finishes in time changes nothing. Not available on Flower, where
    clients have real deadlines.
    """

    clients_per_round: int
    over_select: int = 0
    seconds: float | None = None  # the deadline; None: there is none
    partial: bool = False
    spread: float = 0.5  # of the clients' speeds, see seconds_of
    trace: str | None = None
    seed: int = 0  # of the speeds

    def __post_init__(self) -> None:
        whole("clients_per_round", self.clients_per_round)
        whole("over_select", self.over_select, least=0)
        not_negative("spread", self.spread)
        if self.seconds is not None:
            positive("seconds", self.seconds)

    def sample(self, clients: int, t: int, rng: np.random.Generator) -> list[int]:
        asked = self.clients_per_round + self.over_select
        if asked > clients:
            raise ConfigError(f"clients_per_round and over_select are {asked} in all, but there are {clients} clients")
        drawn = rng.choice(clients, asked, replace=False).tolist()
        needed = seconds_of(drawn, self.spread, self.trace, self.seed)
        deadline = math.inf if self.seconds is None or self.partial else self.seconds
        in_time = [client for client in sorted(drawn, key=lambda c: (needed[c], c)) if needed[client] <= deadline]
        return sorted(in_time[: self.clients_per_round])

    def steps(self, cohort: Sequence[int], asked: Sequence[int]) -> Sequence[int]:
        if self.seconds is None or not self.partial:
            return asked
        needed = seconds_of(cohort, self.spread, self.trace, self.seed)
        possible = (math.floor(k * self.seconds / needed[client]) for client, k in zip(cohort, asked, strict=True))
        return [max(1, min(most, k)) for most, k in zip(possible, asked, strict=True)]


@dataclass(frozen=True)
class Asynchronous(Sampler):
    """An asynchronous server on a virtual clock: `concurrency` clients train at any time, and the server makes a step
    whenever `buffer` uploads have arrived. A client that has sent its upload is replaced at once, by a random one that
    is neither training nor in the buffer. Clients that come later than `max_staleness` steps are dropped.

    For algorithms that are wrapped in FedBuff.
    """

    concurrency: int
    buffer: int
    max_staleness: int = 10
    spread: float = 0.5  # of the clients' speeds, see seconds_of
    trace: str | None = None
    seed: int = 0  # of speeds and draws

    def __post_init__(self) -> None:
        whole("concurrency", self.concurrency)
        whole("buffer", self.buffer)
        whole("max_staleness", self.max_staleness, least=0)
        not_negative("spread", self.spread)
        object.__setattr__(self, "_clocks", {})  # simulations, by the number of clients; they only ever go on

    def arrivals(self, clients: int, t: int) -> Arrivals:
        """Return the uploads that arrive for the server's step t."""
        if self.concurrency + self.buffer > clients:
            raise ConfigError(
                f"concurrency and buffer are {self.concurrency + self.buffer} in all, but there are {clients} clients"
            )
        clocks: dict[int, _Clock] = vars(self)["_clocks"]
        return clocks.setdefault(clients, _Clock(self, clients)).arrivals(t)

    def sample(self, clients: int, t: int, rng: np.random.Generator) -> list[int]:
        return self.arrivals(clients, t).clients

    def staleness(self, clients: int, t: int) -> Sequence[int]:
        return self.arrivals(clients, t).staleness


class _Clock:
    """The simulation: a heap of clients that train, by the time at which they end."""

    def __init__(self, settings: Asynchronous, clients: int) -> None:
        self._settings, self._clients = settings, clients
        self._seconds = seconds_of(range(clients), settings.spread, settings.trace, settings.seed)
        self._training: list[tuple[float, int, int]] = []  # end, client, server steps at its start
        self._draws, self._steps = 0, list[Arrivals]()
        for _ in range(settings.concurrency):
            self._start(0.0, set())

    def arrivals(self, t: int) -> Arrivals:
        while len(self._steps) <= t:
            self._steps.append(self._next())
        return self._steps[t]

    def _next(self) -> Arrivals:
        arrived: dict[int, int] = {}  # staleness by client
        now = 0.0
        while len(arrived) < self._settings.buffer:
            now, client, began = heapq.heappop(self._training)
            if (late := len(self._steps) - began) <= self._settings.max_staleness:
                arrived[client] = late
            self._start(now, set(arrived))
        return Arrivals(sorted(arrived), [arrived[client] for client in sorted(arrived)], now)

    def _start(self, now: float, busy: set[int]) -> None:
        """Let one more client begin; one that is replaced before the server's step still trains from the old model."""
        busy = busy | {client for _, client, _ in self._training}
        free = [client for client in range(self._clients) if client not in busy]
        client = free[int(stream(self._settings.seed, "arrivals", self._draws).integers(len(free)))]
        self._draws += 1
        heapq.heappush(self._training, (now + self._seconds[client], client, len(self._steps)))
