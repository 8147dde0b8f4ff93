"""The plain engine: one client after the other, in the order of their numbers. Others are measured against it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.optimiser import Optimiser, Stats
from fedgbo.core.random import Rows, stream, torch_seed
from fedgbo.core.state import State
from fedgbo.data.samples import Samples
from fedgbo.engines.batches import minibatches
from fedgbo.engines.consensus import check_same, complete, fingerprint
from fedgbo.engines.device import generator_of
from fedgbo.engines.fit import check_fit
from fedgbo.engines.fixed import FixedStep
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.mean import Average, Mean
from fedgbo.engines.team import ALONE, Row, Team
from fedgbo.tasks.task import Task

CHUNK = 64  # samples that go through the model at once where all are wanted: more is slower, and takes more memory


@dataclass(frozen=True)
class CohortResult:
    """What a round of clients gave."""

    sent: State | Average  # the mean of what they sent up, in float64
    steps: float  # mean number of local steps
    loss: float  # mean training loss over clients and steps
    samples: int  # sample gradients computed, all clients together
    download_bytes: int  # to all clients together
    upload_bytes: int  # from all clients together
    averaging_seconds: float = 0.0  # that adding up took, where it is not part of the training itself
    drift: Mapping[str, float] | None = None  # how far clients went apart, where that is measured
    counted: Sequence[int] | None = None  # local steps of the clients in the mean, where those are not the cohort

    @property
    def mean(self) -> State:
        """The mean of what they sent up, in float64."""
        return self.sent if isinstance(self.sent, State) else self.sent.part()


@dataclass(frozen=True, eq=False)
class ClientResult:
    """What one client gave."""

    up: State
    loss: float
    samples: int


class SerialEngine:
    """Runs client updates in this process: this process's share of them, where there are others."""

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        seed: int,
        device: torch.device | str = "cpu",
        team: Team = ALONE,
    ) -> None:
        self.task, self.seed, self.team = task, seed, team
        self.device = torch.device(device)
        self.model = FlatModel(self.build_model(), task.loss)
        self.initial_params = self.model.params.clone()
        self.sample = self.batch(task.data.train, np.arange(min(2, len(task.data.train))))
        check_fit(self.model, task, *self.sample)
        self.model.specialise(self.sample[0], algorithm.terms)
        self._fixed: tuple[Optimiser, Stats, FixedStep | None] | None = None

    def build_model(self) -> nn.Module:
        """Build the task's model with the run's initial values, which are those of the CPU on every device."""
        torch.manual_seed(torch_seed(self.seed, "model"))
        return self.task.model().to(self.device)

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        order = self.team.share(sorted(zip(cohort, steps, strict=True)))
        work = Work(algorithm, down, t)
        return gather((self.train_client(self.model, work, c, k) for c, k in order), down, steps, self.team)

    def train_client(
        self, model: FlatModel, work: "Work", client: int, steps: int, pause: "Pause | None" = None
    ) -> ClientResult:
        """Run one client's update on `model`."""
        simulated = SimulatedClient(self, model, work, client, steps, pause)
        up = work.algorithm.client_update(work.down, simulated)
        return ClientResult(up, simulated.mean_loss(), simulated.samples)

    def fixed_step(self, optimiser: Optimiser, stats: Stats) -> FixedStep | None:
        """Return the step that all clients take with these statistics, worked out once a round."""
        last = self._fixed
        if last is None or last[0] != optimiser or last[1] is not stats:
            last = self._fixed = (optimiser, stats, FixedStep.of(optimiser, stats))
        return last[2]

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        starts = self.chunks()
        return self.scores((self.score(self.model, params, s) for s in self.team.share(starts)), len(starts))

    def chunks(self) -> Sequence[int]:
        """Return where the chunks of test samples begin."""
        return range(0, len(self.task.data.test), CHUNK)

    def score(self, model: FlatModel, params: Tensor, start: int) -> tuple[float, float]:
        """Return what the chunk of test samples from `start` on adds to the mean loss and to the mean metric."""
        test = self.task.data.test
        inputs, targets = self.batch(test, np.arange(start, min(start + CHUNK, len(test))))
        return self.parts(model.outputs(params, inputs), targets)

    def parts(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return what some test samples add to the mean loss and to the mean metric."""
        share, metric = len(targets) / len(self.task.data.test), self.task.metric
        measured = 0.0 if metric is None else float(metric(outputs, targets))
        return share * float(self.task.loss(outputs, targets)), share * measured

    def scores(self, parts: Iterable[tuple[float, float]], count: int) -> dict[str, float]:
        """Add up the parts of all processes in their order, `count` of them."""
        loss = accuracy = 0.0
        for part in self.team.rows(parts, count, 2):
            loss, accuracy = loss + part[0], accuracy + part[1]
        return {"loss": loss} if self.task.metric is None else {"loss": loss, "accuracy": accuracy}

    def batch(self, samples: Samples, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Take rows, with numbers of the model's floating type and labels as torch's losses want them."""
        inputs, targets = samples.batch(rows, rng)
        kind = self.model.params.dtype
        inputs = inputs.to(self.device, kind if inputs.is_floating_point() else None)
        return inputs, targets.to(self.device, kind if targets.is_floating_point() else torch.long)


def gather(results: Iterable[ClientResult], down: State, steps: Sequence[int], team: Team = ALONE) -> CohortResult:
    """Average what the clients of all processes sent up; `results` are of this process's share of them."""
    mean, averaging = Mean(), 0.0
    start = fingerprint(down.params) if team.size > 1 else 0

    def rows() -> Iterator[Row]:
        nonlocal averaging
        for result in results:
            began = time.thread_time()  # of this thread alone: the others train meanwhile
            mean.add(result.up)
            averaging += time.thread_time() - began
            yield result.loss, result.samples, result.up.nbytes, start

    losses, samples, upload, starts = zip(*team.rows(rows(), len(steps), 4), strict=True)
    check_same(starts)
    complete(mean, team, down, len(steps))
    return CohortResult(
        sent=Average(mean, len(steps)),
        steps=float(np.mean(steps)),
        loss=float(np.mean(losses)),
        samples=int(sum(samples)),
        download_bytes=down.nbytes * len(steps),
        upload_bytes=int(sum(upload)),
        averaging_seconds=averaging,
    )


@dataclass(frozen=True, eq=False)
class Work:
    """What all clients of a round have in common."""

    algorithm: FederatedAlgorithm
    down: State
    t: int


@dataclass(frozen=True)
class Pause:
    """A client that has taken so many local steps is to wait."""

    steps: int
    wait: Callable[[], None]


class SimulatedClient(Client):
    """A client whose data lie in this process."""

    def __init__(
        self, engine: SerialEngine, model: FlatModel, work: Work, client: int, steps: int, pause: Pause | None = None
    ) -> None:
        self.steps = steps
        self.samples = 0
        self._client, self._round = client, work.t
        self._engine, self._model, self._pause = engine, model, pause
        self._terms, self._start = work.algorithm.terms, work.down.params
        data, t = engine.task.data, work.t
        self._first, self._size = int(data.offsets[client]), data.size(client)
        self._augment = stream(engine.seed, "augment", t, client)
        self._batches = minibatches(self._size, engine.task.batch_size, engine.seed, t, client)
        self._losses: list[Tensor] = []
        generator_of(engine.device).manual_seed(torch_seed(engine.seed, "dropout", t, client))

    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on the next minibatch."""
        rows = self._next()
        self._model.params.copy_(params)
        self._losses.append(self._minibatch(rows))
        return self._pulled(params, self._model.flat_gradient())

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all samples, a chunk of them at a time."""
        rows = np.arange(self._first, self._first + self._size)
        total = torch.zeros_like(params)
        for start in range(0, self._size, CHUNK):
            chunk = rows[start : start + CHUNK]
            self._model.params.copy_(params)
            self._model.backward(self._batch(chunk), self._terms)
            total += self._pulled(params, self._model.flat_gradient()) * (len(chunk) / self._size)
        return total

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        """Take K local steps in place, each in one pass over the weights, where the step allows it."""
        step = self._engine.fixed_step(optimiser, stats)
        if step is None or any(term.gradient(params, self._start) is not None for term in self._terms):
            return super().descend(params, optimiser, stats)
        self._model.params.copy_(params)
        for _ in range(self.steps):
            self._losses.append(self._step(self._next(), step))
        return self._model.release()

    def mean_loss(self) -> float:
        """Return the mean loss over the minibatches so far; raise if it is not finite."""
        if not self._losses:
            return 0.0
        loss = float(torch.stack(self._losses).mean())
        if not np.isfinite(loss):
            raise DivergenceError(f"the training loss of client {self._client} is {loss} in round {self._round + 1}")
        return loss

    def _next(self) -> Rows:
        """Return the rows of the next minibatch, when it is this client's turn."""
        if self._pause is not None and len(self._losses) == self._pause.steps:
            self._pause.wait()
        return self._first + next(self._batches)

    def _step(self, rows: Rows, step: FixedStep) -> Tensor:
        """Take a local step in place; return the mean loss before it."""
        return self._model.step(self._batch(rows), self._terms, step)

    def _minibatch(self, rows: Rows) -> Tensor:
        """Compute the gradients of a local step; return the mean loss."""
        return self._model.backward(self._batch(rows), self._terms)

    def _batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        self.samples += len(rows)
        return self._engine.batch(self._engine.task.data.train, rows, self._augment)

    def _pulled(self, params: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the loss at `params` with those of the terms on the parameters."""
        for term in self._terms:
            pull = term.gradient(params, self._start)
            grad = grad if pull is None else grad + pull
        return grad


def draws_random_numbers(model: FlatModel, batch: tuple[Tensor, Tensor]) -> bool:
    """Return whether training the model draws from torch's generator (dropout), which threads would share."""
    before = torch.get_rng_state()
    model.gradient(model.params.clone(), batch)
    return not torch.equal(torch.get_rng_state(), before)
