"""The plain engine: one client after the other, in the order of their numbers. Others are measured against it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.random import Rows, stream, torch_seed
from fedgbo.core.state import State
from fedgbo.data.samples import Samples
from fedgbo.engines.batches import minibatches
from fedgbo.engines.consensus import check_same, complete, fingerprint
from fedgbo.engines.device import generator_of
from fedgbo.engines.fit import check_fit
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.mean import Mean
from fedgbo.engines.team import ALONE, Row, Team
from fedgbo.tasks.task import Task

CHUNK = 64  # samples that go through the model at once where all are wanted: more is slower, and takes more memory


@dataclass(frozen=True)
class CohortResult:
    """What a round of clients gave."""

    mean: State  # of what they sent up, in float64
    steps: float  # mean number of local steps
    loss: float  # mean training loss over clients and steps
    samples: int  # sample gradients computed, all clients together
    download_bytes: int  # to all clients together
    upload_bytes: int  # from all clients together


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
        if any(term.needs_hidden for term in algorithm.terms):
            self.model.watch_hidden(self.sample[0])

    def build_model(self) -> nn.Module:
        """Build the task's model with the run's initial values, which are those of the CPU on every device."""
        torch.manual_seed(torch_seed(self.seed, "model"))
        return self.task.model().to(self.device)

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        order = self.team.share(sorted(zip(cohort, steps, strict=True)))
        results = (self.train_client(self.model, algorithm, down, c, k, t) for c, k in order)
        return gather(results, down, steps, self.team)

    def train_client(
        self, model: FlatModel, algorithm: FederatedAlgorithm, down: State, client: int, steps: int, t: int
    ) -> ClientResult:
        """Run one client's update on `model`."""
        simulated = SimulatedClient(self, model, algorithm, down, client, steps, t)
        up = algorithm.client_update(down, simulated)
        return ClientResult(up, simulated.mean_loss(), simulated.samples)

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
    mean = Mean()
    start = fingerprint(down) if team.size > 1 else 0

    def rows() -> Iterator[Row]:
        for result in results:
            mean.add(result.up)
            yield result.loss, result.samples, result.up.nbytes, start

    losses, samples, upload, starts = zip(*team.rows(rows(), len(steps), 4), strict=True)
    check_same(starts)
    complete(mean, team, down, len(steps))
    return CohortResult(
        mean=mean.value(len(steps)),
        steps=float(np.mean(steps)),
        loss=float(np.mean(losses)),
        samples=int(sum(samples)),
        download_bytes=down.nbytes * len(steps),
        upload_bytes=int(sum(upload)),
    )


class SimulatedClient(Client):
    """A client whose data lie in this process."""

    def __init__(
        self,
        engine: SerialEngine,
        model: FlatModel,
        algorithm: FederatedAlgorithm,
        down: State,
        client: int,
        steps: int,
        t: int,
    ) -> None:
        self.steps = steps
        self.samples = 0
        self._client, self._round = client, t
        self._engine, self._model, self._terms, self._start = engine, model, algorithm.terms, down.params
        data = engine.task.data
        self._first, self._size = int(data.offsets[client]), data.size(client)
        self._augment = stream(engine.seed, "augment", t, client)
        self._batches = minibatches(self._size, engine.task.batch_size, engine.seed, t, client)
        self._losses: list[Tensor] = []
        generator_of(engine.device).manual_seed(torch_seed(engine.seed, "dropout", t, client))

    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on the next minibatch."""
        grad, loss = self._gradient(params, self._first + next(self._batches))
        self._losses.append(loss)
        return grad

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all samples, a chunk of them at a time."""
        rows = np.arange(self._first, self._first + self._size)
        total = torch.zeros_like(params)
        for start in range(0, self._size, CHUNK):
            chunk = rows[start : start + CHUNK]
            total += self._gradient(params, chunk)[0] * (len(chunk) / self._size)
        return total

    def mean_loss(self) -> float:
        """Return the mean loss over the minibatches so far; raise if it is not finite."""
        if not self._losses:
            return 0.0
        loss = float(torch.stack(self._losses).mean())
        if not np.isfinite(loss):
            raise DivergenceError(f"the training loss of client {self._client} is {loss} in round {self._round + 1}")
        return loss

    def _gradient(self, params: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        self.samples += len(rows)
        batch = self._engine.batch(self._engine.task.data.train, rows, self._augment)
        grad, loss = self._model.gradient(params, batch, self._terms)
        for term in self._terms:
            pull = term.gradient(params, self._start)
            grad = grad if pull is None else grad + pull
        return grad, loss
