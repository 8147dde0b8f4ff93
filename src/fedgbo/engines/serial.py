"""The plain engine: one client after the other, in the order of their numbers. Others are measured against it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.random import Rows, stream, torch_seed
from fedgbo.core.state import Mean, State
from fedgbo.data.samples import Samples
from fedgbo.engines.batches import minibatches
from fedgbo.engines.fit import check_fit
from fedgbo.engines.flat import FlatModel
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
    drift: Mapping[str, float] | None = None  # how far clients went apart, where that is measured


@dataclass(frozen=True, eq=False)
class ClientResult:
    """What one client gave."""

    up: State
    loss: float
    samples: int


class SerialEngine:
    """Runs client updates in this process."""

    def __init__(self, task: Task, algorithm: FederatedAlgorithm, seed: int) -> None:
        self.task = task
        self.seed = seed
        self.model = FlatModel(self.build_model(), task.loss)
        self.initial_params = self.model.params.clone()
        self.sample = self.batch(task.data.train, np.arange(min(2, len(task.data.train))))
        check_fit(self.model, task, *self.sample)
        if any(term.needs_hidden for term in algorithm.terms):
            self.model.watch_hidden(self.sample[0])

    def build_model(self) -> nn.Module:
        """Build the task's model with the run's initial values."""
        torch.manual_seed(torch_seed(self.seed, "model"))
        return self.task.model()

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        order = sorted(zip(cohort, steps, strict=True))  # the sum's order, and so its bits, are the clients'
        return gather((self.train_client(self.model, algorithm, down, c, k, t) for c, k in order), down, steps)

    def train_client(
        self, model: FlatModel, algorithm: FederatedAlgorithm, down: State, client: int, steps: int, t: int
    ) -> ClientResult:
        """Run one client's update on `model`."""
        simulated = SimulatedClient(self, model, algorithm, down, client, steps, t)
        up = algorithm.client_update(down, simulated)
        return ClientResult(up, simulated.mean_loss(), simulated.samples)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        return self.scores(self.score(self.model, params, start) for start in range(0, len(self.task.data.test), CHUNK))

    def score(self, model: FlatModel, params: Tensor, start: int) -> tuple[float, float]:
        """Return what the chunk of test samples from `start` on adds to the mean loss and to the mean metric."""
        test, metric = self.task.data.test, self.task.metric
        rows = np.arange(start, min(start + CHUNK, len(test)))
        inputs, targets = self.batch(test, rows)
        outputs = model.outputs(params, inputs)
        share = len(rows) / len(test)
        measured = 0.0 if metric is None else float(metric(outputs, targets))
        return share * float(self.task.loss(outputs, targets)), share * measured

    def scores(self, parts: Iterable[tuple[float, float]]) -> dict[str, float]:
        """Add up the parts in their order."""
        loss = accuracy = 0.0
        for part in parts:
            loss, accuracy = loss + part[0], accuracy + part[1]
        return {"loss": loss} if self.task.metric is None else {"loss": loss, "accuracy": accuracy}

    def batch(self, samples: Samples, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Take rows, with numbers of the model's floating type and labels as torch's losses want them."""
        inputs, targets = samples.batch(rows, rng)
        kind = self.model.params.dtype
        inputs = inputs.to(kind) if inputs.is_floating_point() else inputs
        return inputs, targets.to(kind) if targets.is_floating_point() else targets.long()


def gather(results: Iterable[ClientResult], down: State, steps: Sequence[int]) -> CohortResult:
    """Average what clients sent up, in the order in which they come."""
    mean, losses, samples, upload = Mean(), [], 0, 0
    for result in results:
        mean.add(result.up)
        losses.append(result.loss)
        samples += result.samples
        upload += result.up.nbytes
    return CohortResult(
        mean=mean.value(),
        steps=float(np.mean(steps)),
        loss=float(np.mean(losses)),
        samples=samples,
        download_bytes=down.nbytes * len(steps),
        upload_bytes=upload,
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
        self.augment = stream(engine.seed, "augment", t, client)
        self._batches = minibatches(self._size, engine.task.batch_size, engine.seed, t, client)
        self._losses: list[Tensor] = []
        torch.default_generator.manual_seed(torch_seed(engine.seed, "dropout", t, client))

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
        batch = self._engine.batch(self._engine.task.data.train, rows, self.augment)
        grad, loss = self._model.gradient(params, batch, self._terms)
        for term in self._terms:
            pull = term.gradient(params, self._start)
            grad = grad if pull is None else grad + pull
        return grad, loss
