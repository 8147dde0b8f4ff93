"""The plain engine: one client after the other, in the order of their numbers. Others are measured against it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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

CHUNK = 1024  # samples that go through the model at once where a batch may be large


@dataclass(frozen=True)
class CohortResult:
    """What a round of clients gave."""

    mean: State  # of what they sent up, in float64
    steps: float  # mean number of local steps
    loss: float  # mean training loss over clients and steps
    samples: int  # sample gradients computed, all clients together
    download_bytes: int  # to all clients together
    upload_bytes: int  # from all clients together


class SerialEngine:
    """Runs client updates in this process."""

    def __init__(self, task: Task, algorithm: FederatedAlgorithm, seed: int) -> None:
        self.task = task
        self.seed = seed
        torch.manual_seed(torch_seed(seed, "model"))
        self.model = FlatModel(task.model(), task.loss)
        self.initial_params = self.model.params.clone()
        self.sample = self.batch(task.data.train, np.arange(min(2, len(task.data.train))))
        check_fit(self.model, task, *self.sample)
        if any(term.needs_hidden for term in algorithm.terms):
            self.model.watch_hidden(self.sample[0])

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""
        mean, losses, samples, upload = Mean(), [], 0, 0
        for c, k in sorted(zip(cohort, steps, strict=True)):  # the sum's order, and so its bits, are the clients'
            client = SimulatedClient(self, algorithm, down, c, k, t)
            up = algorithm.client_update(down, client)
            mean.add(up)
            losses.append(client.mean_loss())
            samples += client.samples
            upload += up.nbytes
        return CohortResult(
            mean=mean.value(),
            steps=float(np.mean(steps)),
            loss=float(np.mean(losses)),
            samples=samples,
            download_bytes=down.nbytes * len(cohort),
            upload_bytes=upload,
        )

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        test, metric = self.task.data.test, self.task.metric
        loss = score = 0.0
        for start in range(0, len(test), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(test)))
            inputs, targets = self.batch(test, rows)
            outputs = self.model.outputs(params, inputs)
            share = len(rows) / len(test)
            loss += share * float(self.task.loss(outputs, targets))
            if metric is not None:
                score += share * float(metric(outputs, targets))
        return {"loss": loss} if metric is None else {"loss": loss, "accuracy": score}

    def batch(self, samples: Samples, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Take rows, with numbers of the model's floating type and labels as torch's losses want them."""
        inputs, targets = samples.batch(rows, rng)
        kind = self.model.params.dtype
        inputs = inputs.to(kind) if inputs.is_floating_point() else inputs
        return inputs, targets.to(kind) if targets.is_floating_point() else targets.long()


class SimulatedClient(Client):
    """A client whose data lie in this process."""

    def __init__(
        self, engine: SerialEngine, algorithm: FederatedAlgorithm, down: State, client: int, steps: int, t: int
    ) -> None:
        self.steps = steps
        self.samples = 0
        self._client, self._round = client, t
        self._engine, self._terms, self._start = engine, algorithm.terms, down.params
        data = engine.task.data
        self._first, self._size = int(data.offsets[client]), data.size(client)
        self._augment = stream(engine.seed, "augment", t, client)
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
        batch = self._engine.batch(self._engine.task.data.train, rows, self._augment)
        grad, loss = self._engine.model.gradient(params, batch, self._terms)
        for term in self._terms:
            pull = term.gradient(params, self._start)
            grad = grad if pull is None else grad + pull
        return grad, loss
