"""Samplers on a virtual clock: clients have speeds and hours, and rounds take as long as the clients they wait for.

The clock is a function of the sampler's settings, its trace and the run's seed and work. It is computed from the first
round on, so that a run that is resumed sees the same times.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from fedgbo.core import ConfigError, Sampler, Workload, not_negative, positive, share, stream, whole
from fedgbo.pipeline.fleet import DAY, Device, Model, digest, read_trace

MOST = 100  # clients that may begin in an asynchronous round, for each client of the task, before it is given up


class Arrivals(NamedTuple):
    """The uploads that the server waits for in a round."""

    clients: list[int]  # in ascending order
    staleness: list[int]  # how many rounds were made since each of them downloaded
    seconds: float  # on the virtual clock, when the round ends


@dataclass(frozen=True, kw_only=True)
class Timed(Sampler):
    """A sampler on a virtual clock. Devices are those of `trace` or, without one, those of a random model."""

    spread: float = 0.5  # of the clients' speeds around their median
    seconds_per_sample: float | None = None  # median; None: the median round takes one second
    bandwidth: float | None = None  # median, bytes per second; None: transfers take no time
    available: float = 1.0  # share of the time in which a client is available
    period: float | None = None  # seconds after which the times repeat; for the model a day by default
    trace: str | None = None  # a CSV file
    seed: int = 0  # of the model

    def __post_init__(self) -> None:
        not_negative("spread", self.spread)
        share("available", self.available)
        for name in ("seconds_per_sample", "bandwidth", "period"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        names = ("spread", "seconds_per_sample", "bandwidth", "available", "seed")
        changed = [name for name in names if getattr(self, name) != getattr(Timed, name)]
        if self.trace is not None and changed:
            raise ConfigError(f"trace already has all speeds and times; leave out {', '.join(changed)}")
        object.__setattr__(self, "_clocks", {})  # by the number of clients; they only ever go on
        object.__setattr__(self, "_work", None)

    def for_run(self, work: Workload) -> Self:
        bound = replace(self)
        object.__setattr__(bound, "_work", work)
        return bound

    def source(self) -> str | None:
        return None if self.trace is None else digest(self.trace)

    def elapsed(self, t: int) -> float | None:
        work: Workload | None = vars(self)["_work"]
        if work is None:
            return None
        return self.arrivals(work.clients, t).seconds if t >= 0 else 0.0

    def sample(self, clients: int, t: int, rng: np.random.Generator) -> list[int]:
        return self.arrivals(clients, t).clients

    def arrivals(self, clients: int, t: int) -> Arrivals:
        """Return what the server waits for in round t. Outside of a run every client takes one local step."""
        clocks: dict[int, Clock] = vars(self)["_clocks"]
        if clients not in clocks:
            clocks[clients] = self._clock(vars(self)["_work"] or Workload(clients))
        return clocks[clients].arrivals(t)

    @abstractmethod
    def _clock(self, work: Workload) -> "Clock":
        """Return the simulation of a run."""


class Clock(ABC):
    """A simulation, round by round."""

    def __init__(self, settings: Timed, work: Workload) -> None:
        self.settings, self.work = settings, work
        self._done: list[Arrivals] = []
        self._model = Model(
            settings.spread,
            settings.seconds_per_sample,
            settings.bandwidth,
            settings.available,
            settings.period or DAY,
            settings.seed,
        )
        trace = settings.trace
        self._devices: dict[int, Device] = {}
        if trace is not None:
            self._devices = dict(enumerate(read_trace(trace, work.clients, settings.period)))

    def arrivals(self, t: int) -> Arrivals:
        """Return what arrives in round t."""
        while len(self._done) <= t:
            self._done.append(self.next(len(self._done), self._done[-1].seconds if self._done else 0.0))
        return self._done[t]

    @abstractmethod
    def next(self, t: int, now: float) -> Arrivals:
        """Return what arrives in round t, which begins now."""

    def device(self, client: int) -> Device:
        """Return a client's device."""
        if client not in self._devices:
            self._devices[client] = self._model.device(client)
        return self._devices[client]

    def needs(self, client: int, steps: int) -> tuple[float, float]:
        """Return the seconds that a round with so many local steps takes: for what travels, and for training."""
        device, work = self.device(client), self.work
        samples, nbytes = device.per_sample and work.samples(client, steps), device.per_byte and work.nbytes()
        return nbytes * device.per_byte, device.seconds + samples * device.per_sample

    def draw(self, count: int, now: float, rng: np.random.Generator, busy: Collection[int] = ()) -> list[int]:
        """Return `count` random clients that are on and not busy; fewer if there are no more.

        Devices are looked at in a random order until there are enough, so that a draw from many clients costs little.
        """
        clients = self.work.clients
        if self.settings.trace is None and self.settings.available == 1:  # with nobody busy this is FixedSize's draw
            order: Iterable[int] = rng.choice(clients, min(clients, count + len(busy)), replace=False).tolist()
        else:
            order = _shuffled(clients, rng)
        return list(islice((c for c in order if c not in busy and self.device(c).shift(now)[0] <= now), count))

    def next_on(self, now: float, busy: Collection[int] = ()) -> float:
        """Return when the first client that is not busy is on; infinity for never."""
        free = (client for client in range(self.work.clients) if client not in busy)
        return min((self.device(client).shift(now)[0] for client in free), default=math.inf)

    def nobody(self, now: float) -> ConfigError:
        """Return the error of a run in which no client can go on."""
        return ConfigError(
            f"after {now:g} s of virtual time no client is available long enough to send an upload; give longer times, "
            "or period=, after which the times of a trace repeat"
        )


def _shuffled(n: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield 0 ... n - 1 in a random order: Fisher and Yates's shuffle, as far as it is needed."""
    moved: dict[int, int] = {}
    for i in range(n):
        j = int(rng.integers(i, n))
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)


@dataclass(frozen=True)
class Deadline(Timed):
    """Rounds on a virtual clock: draws `over_select` more of the available clients than it needs, and keeps the fastest
    that finish before the deadline. A client that becomes unavailable before it has finished is lost.

    With `partial`, late clients take as many of their local steps as the time allows, and are lost if it allows none.
    A round in which no client finishes in time changes nothing. Without `seconds` there is no deadline. Not for Flower,
    where real clients have real deadlines.
    """

    clients_per_round: int
    over_select: int = 0
    seconds: float | None = None  # the deadline; None: there is none
    partial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("clients_per_round", self.clients_per_round)
        whole("over_select", self.over_select, least=0)
        if self.seconds is not None:
            positive("seconds", self.seconds)

    def steps(self, cohort: Sequence[int], asked: Sequence[int]) -> Sequence[int]:
        work: Workload = vars(self)["_work"] or Workload(max(cohort) + 1)
        clock = vars(self)["_clocks"].get(work.clients) or _Rounds(self, work)
        return [clock.possible(client, k) for client, k in zip(cohort, asked, strict=True)]

    def _clock(self, work: Workload) -> Clock:
        if (asked := self.clients_per_round + self.over_select) > work.clients:
            raise ConfigError(
                f"clients_per_round and over_select are {asked} in all, but there are {work.clients} clients"
            )
        return _Rounds(self, work)


class _Rounds(Clock):
    """Synchronous rounds."""

    settings: Deadline

    def next(self, t: int, now: float) -> Arrivals:
        wanted, rng = self.settings.clients_per_round, stream(self.work.seed, "cohort", t)
        asked = wanted + self.settings.over_select
        if not (drawn := self.draw(asked, now, rng)):
            if math.isinf(first := self.next_on(now)):
                raise self.nobody(now)
            now, drawn = first, self.draw(asked, first, rng)
        limit = math.inf if self.settings.seconds is None else now + self.settings.seconds
        ends = {client: self._end(client, t, now, limit) for client in drawn}
        gone = {client: self.device(client).shift(now)[1] for client in drawn}
        in_time = [c for c in sorted(drawn, key=lambda c: (ends[c], c)) if ends[c] <= min(limit, gone[c])]
        kept = sorted(in_time[:wanted])
        if len(kept) == min(wanted, len(drawn)):
            end = max(ends[client] for client in kept)
        else:  # the server waits until the deadline or, without one, until the last client has ended or gone
            end = min(limit, max(min(ends[client], gone[client]) for client in drawn))
        return Arrivals(kept, [0] * len(kept), end)

    def possible(self, client: int, k: int) -> int:
        """Return how many of k local steps a client takes; 0: the time does not allow one."""
        if self.settings.seconds is None or not self.settings.partial:
            return k
        travel, training = self.needs(client, k)
        return max(0, min(k, math.floor(k * (self.settings.seconds - travel) / training)))

    def _end(self, client: int, t: int, now: float, limit: float) -> float:
        """Return when a client's upload is there; infinity if it takes no local step."""
        k = self.work.steps(client, t)
        travel, training = self.needs(client, k)
        if not (steps := self.possible(client, k)):
            return math.inf
        end = now + travel + training * (steps / k)
        return end if steps == k else min(end, limit)  # whatever the last digit


@dataclass(frozen=True)
class Asynchronous(Timed):
    """An asynchronous server on a virtual clock: `concurrency` clients train at any time, and the server updates its
    model whenever `buffer` uploads have arrived. A client that has sent its upload is replaced at once by a random
    available client that is neither training nor in the buffer; a client that starts at the time of an update has the
    new model. Clients that become unavailable before they have finished, or that are more than `max_staleness` updates
    late, are lost.

    For algorithms that are wrapped in FedBuff.
    """

    concurrency: int
    buffer: int
    max_staleness: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("concurrency", self.concurrency)
        whole("buffer", self.buffer)
        whole("max_staleness", self.max_staleness, least=0)

    def staleness(self, clients: int, t: int) -> Sequence[int]:
        return self.arrivals(clients, t).staleness

    def most_stale(self) -> int:
        return self.max_staleness

    def _clock(self, work: Workload) -> Clock:
        if (asked := max(self.concurrency, self.buffer)) > work.clients:
            raise ConfigError(f"concurrency or buffer is {asked}, but there are {work.clients} clients")
        return _Events(self, work)


class _Event(NamedTuple):
    """When a client ends, or when a place that is free may be taken."""

    time: float
    client: int  # -1 for a free place
    began: int = 0  # rounds at its start
    arrives: bool = False  # or it goes off before


class _Events(Clock):
    """Asynchronous rounds: a heap of events.

    All that ends at one moment ends before anybody begins, and the server's step at that moment comes in between.
    """

    settings: Asynchronous

    def __init__(self, settings: Asynchronous, work: Workload) -> None:
        super().__init__(settings, work)
        self._events = list[_Event]()
        self._places = settings.concurrency  # that are free

    def next(self, t: int, now: float) -> Arrivals:
        arrived: dict[int, int] = {}  # staleness by client
        lost = draws = 0
        while len(arrived) < self.settings.buffer:
            if self._places and not (self._events and self._events[0].time <= now):
                self._start(now, t, draws, arrived)
                draws += 1
            lost += 1
            if not self._events or lost > MOST * self.work.clients:
                raise self.nobody(now)
            event = heapq.heappop(self._events)
            now = event.time
            if event.arrives and t - event.began <= self.settings.max_staleness:
                arrived[event.client] = t - event.began
            self._places += 1
        return Arrivals(sorted(arrived), [arrived[client] for client in sorted(arrived)], now)

    def _start(self, now: float, t: int, draw: int, arrived: Collection[int]) -> None:
        """Let clients take the free places, now or when one is on; draw number 0 of a round is that of FixedSize."""
        busy = {*arrived, *(event.client for event in self._events)} - {-1}
        rng = stream(self.work.seed, "cohort", t, *([draw] if draw else []))
        begin = self.draw(self._places, now, rng, busy)
        for client in begin:
            end, gone = now + sum(self.needs(client, self.work.steps(client, t))), self.device(client).shift(now)[1]
            heapq.heappush(self._events, _Event(min(end, gone), client, t, end <= gone))
        self._places -= len(begin)
        if self._places and not math.isinf(first := self.next_on(now, busy | set(begin))):
            for _ in range(self._places):
                heapq.heappush(self._events, _Event(first, -1))
            self._places = 0
