"""The protocol between the round loop and the engines, and the types that it owns."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineOptimiser, AffineStep, ConfigError, FederatedAlgorithm, Mean, State, Stats, Upload
from fedgbo.costs.operations import Meter
from fedgbo.data.tree import digest_of
from fedgbo.engines.buffers import load_buffers
from fedgbo.engines.evaluate import Chunk, OwnModels, Piece, Scorer, Scores
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers import STOCK
from fedgbo.engines.module import Blueprint
from fedgbo.pipeline import Pipeline
from fedgbo.tasks.task import Batch, Task

LOCAL_BUFFERS = "model.buffers"  # among the vectors that a client keeps


class ClientStates(Protocol):
    """Where the vectors are that clients keep from round to round."""

    def load(self, client: int, initial: Stats) -> dict[str, Tensor]:
        """Return a client's vectors, `initial` before its first round."""

    def save(self, client: int, t: int, state: Stats) -> None:
        """Keep a client's vectors as they are after round t."""


@dataclass(frozen=True, eq=False)
class Round:
    """One round's work: what the clients of a cohort are asked to do."""

    t: int  # from 0 on
    algorithm: FederatedAlgorithm  # with the numbers of this round in the place of schedules
    down: State  # what clients download
    cohort: Sequence[int]  # in ascending order
    steps: Sequence[int]  # K of each client of the cohort
    pipeline: Pipeline
    meter: Meter
    states: ClientStates | None = None  # None: clients keep nothing
    initial: Tensor | None = None  # x_0, from which the vectors that clients keep start; None: from what they download
    _steps: list[tuple[AffineOptimiser, AffineStep]] = field(default_factory=list, repr=False)
    _unwritten: tuple[int, ...] = field(init=False, repr=False)  # versions of the download before the first client

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unwritten", self.down.versions())

    def check_unwritten(self) -> None:
        """Raise if a client has written into what all clients download."""
        if self.down.versions() != self._unwritten:
            where = f"{type(self.algorithm).__name__}.client_update"
            raise ConfigError(f"{where} wrote into the state that all clients download; change a copy of it")

    def with_download(self, down: State) -> "Round":
        """Return the same work with another download, for the second exchange of a round."""
        return replace(self, down=down, _steps=[])

    @property
    def origin(self) -> Tensor:
        """The model that the vectors which clients keep start from."""
        return self.down.params if self.initial is None else self.initial

    def fixed_step(self, optimiser: AffineOptimiser, stats: Stats, like: Tensor) -> AffineStep:
        """Return the local step of these statistics; that of the broadcast ones is computed once a round."""
        if stats is not self.down.stats or (self._steps and self._steps[0][0] is not optimiser):
            return optimiser.fixed(stats).like(like)
        if not self._steps:
            self._steps.append((optimiser, optimiser.fixed(stats).like(like)))
        return self._steps[0][1]


@dataclass(frozen=True, eq=False)
class Gathered:
    """What a round's clients gave."""

    mean: Mean
    steps: float  # mean number of local steps, with the aggregator's weights
    weight: int  # of all uploads together, by the aggregator
    loss: float  # mean training loss over clients
    clients: Sequence[int]  # that gave it
    local_steps: int  # of all clients together
    gradients: int  # sample gradients computed, all clients together
    operations: float | None  # other operations per parameter, all clients together; None: not counted
    download_bytes: int
    upload_bytes: int
    training_seconds: float = 0.0  # of the round's time, until the last upload was there
    drift: Mapping[str, float] | None = None  # how far clients went apart, where that is measured

    def with_part(self, other: "Gathered") -> "Gathered":
        """Return the same with what other clients of the round gave and cost; the means are not combined."""
        clients = sorted([*self.clients, *other.clients])
        share = len(other.clients) / len(clients)
        both = self.after(other)
        return replace(
            both,
            loss=(1 - share) * self.loss + share * other.loss,
            clients=clients,
            local_steps=self.local_steps + other.local_steps,
        )

    def after(self, first: "Gathered") -> "Gathered":
        """Return the same with what the first exchange of the round cost added."""
        counted = self.operations is not None and first.operations is not None
        return replace(
            self,
            gradients=self.gradients + first.gradients,
            operations=self.operations + first.operations if counted else None,  # type: ignore[operator]
            download_bytes=self.download_bytes + first.download_bytes,
            upload_bytes=self.upload_bytes + first.upload_bytes,
            training_seconds=self.training_seconds + first.training_seconds,
        )


@dataclass(frozen=True, eq=False)
class Origin:
    """The model that a run starts from."""

    blueprint: Blueprint
    params: Tensor  # (P,), its trainable parameters
    fingerprint: Mapping[str, float]  # loss and gradient norm of one batch: tells tasks apart
    moving: Sequence[str] = ()  # names of the buffers that training changes
    buffers: Tensor | None = None  # (B,), these buffers where they are averaged
    local_buffers: Tensor | None = None  # (B,), these buffers where each client keeps its own

    def client_state(self, algorithm: FederatedAlgorithm, params: Tensor) -> dict[str, Tensor]:
        """Return all vectors that every client keeps, as they are before its first round."""
        declared = algorithm.client_state(params)
        if not isinstance(declared, Mapping):
            raise ConfigError(f"{type(algorithm).__name__}.client_state must return a dict of vectors by name")
        return {**declared} if self.local_buffers is None else {**declared, LOCAL_BUFFERS: self.local_buffers}

    def constants(self) -> str:
        """Return a digest of what training leaves as it is: frozen parameters and constant buffers."""
        module = self.blueprint.module
        changed = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        changed |= set(self.moving)
        return digest_of({name: x for name, x in module.state_dict().items() if name not in changed})

    def finished(self, params: Tensor, buffers: Tensor | None) -> nn.Module:
        """Return a copy of the module with these parameters and buffers, for evaluation."""
        module = self.blueprint.copy()
        FlatModel(module, functional.cross_entropy, STOCK).load(params)
        if buffers is not None:
            load_buffers(module, self.moving, buffers)
        module.eval()  # whose result a `train` of the user's own may forget
        return module


class Engine(Protocol):
    """Trains cohorts and evaluates models: the same results from every engine, up to rounding."""

    task: Task
    seed: int
    model: FlatModel
    origin: Origin
    sample: Batch  # a small one

    @property
    def choice(self) -> str:
        """How clients take their local steps; `fedgbo run --explain` prints it."""

    def train(self, work: Round) -> Gathered:
        """Run `client_update` once for every client of the cohort, and combine the uploads."""

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        """Return the loss and the metrics on all samples that are there to score with.

        `own_models` has the model that each client uses, where that is not the server's. Clients' samples are then
        scored with it, and all clients' test samples together are the test set.
        """


class LocalEngine(Engine, Protocol):
    """An engine whose clients are in this process, and which can do a part of the work under torchrun."""

    scorer: Scorer

    def uploads(self, work: Round, order: Sequence[tuple[int, int]]) -> Iterator[Upload]:
        """Yield the uploads of clients, given with their numbers of local steps, in this order."""

    def chunks(self, own_models: OwnModels | None = None) -> Sequence[Chunk]:
        """Return the chunks of samples that a model is scored on."""

    def pieces(self, server: State, chunks: Sequence[Chunk], own_models: OwnModels | None = None) -> Iterator[Piece]:
        """Yield what chunks of samples add to the scores."""


@dataclass
class Tally:
    """Adds up the bookkeeping of uploads while they pass on to the aggregator."""

    clients: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the uploaded vectors
    losses: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    gradients: int = 0
    operations: float | None = 0.0
    nbytes: int = 0
    seconds: float = 0.0  # spent waiting for uploads

    def passing(self, uploads: Iterable[Upload], work: Round) -> Iterator[Upload]:
        """Yield the uploads."""
        began = time.perf_counter()
        for upload in uploads:
            self.seconds += time.perf_counter() - began
            self.clients.append(upload.client)
            self.names = self.names or list(upload.state.tensors())
            self.losses.append(upload.loss)
            self.weights.append(work.pipeline.aggregator.weight(upload))
            self.steps.append(upload.steps)
            self.gradients += upload.gradients
            counted = self.operations is not None and upload.operations is not None
            self.operations = self.operations + upload.operations if counted else None  # type: ignore[operator]
            self.nbytes += upload.nbytes
            yield upload
            began = time.perf_counter()

    def gathered(self, combined: State, work: Round, population: int, downloads: int | None = None) -> Gathered:
        """Return the round's outcome; `downloads` is how many clients downloaded, where not all of them answered."""
        where = f"{type(work.pipeline.aggregator).__name__}.combine"
        combined = State.expect(combined, where, work.down.params).to(work.down.params.dtype)
        if not self.clients or not any(self.weights):
            raise ConfigError(f"{where} must go through the uploads, and give some of them a weight above 0")
        if self.names and combined.tensors().keys() != set(self.names):
            raise ConfigError(f"{where} returned {', '.join(combined.tensors())} of uploads of {', '.join(self.names)}")
        count = len(self.clients) if downloads is None else downloads
        return Gathered(
            mean=Mean(combined.params, combined.stats, len(self.clients), population, combined.buffers),
            steps=sum(map(mul, self.steps, self.weights)) / sum(self.weights),
            weight=sum(self.weights),
            loss=sum(self.losses) / len(self.losses),
            clients=self.clients,
            local_steps=sum(self.steps),
            gradients=self.gradients,
            operations=self.operations,
            download_bytes=work.down.nbytes * count,
            upload_bytes=self.nbytes,
            training_seconds=self.seconds,
        )


def gather(uploads: Iterable[Upload], work: Round, population: int, downloads: int | None = None) -> Gathered:
    """Combine uploads, which come in ascending order of clients, and add up their bookkeeping."""
    tally = Tally()
    combined = work.pipeline.aggregator.combine(tally.passing(uploads, work))
    return tally.gathered(combined, work, population, downloads)
