"""The plain engine: one client after the other, in ascending order. All other engines are checked against it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core import Client, FederatedAlgorithm, State, Upload
from fedgbo.core.errors import ConfigError, DataError, DivergenceError
from fedgbo.core.objective import MaxEntropy, Term
from fedgbo.core.optimiser import AffineOptimiser, AffineStep, Optimiser, Stats
from fedgbo.core.random import Rows, stream, torch_seed
from fedgbo.data.samples import Samples
from fedgbo.engines.batches import Batches, Pause
from fedgbo.engines.device import generator_of
from fedgbo.engines.engine import Gathered, Round, gather
from fedgbo.engines.flat import FlatModel, check_fit
from fedgbo.tasks.task import Task

CHUNK = 64  # samples that go through the model at once where all are wanted: more is slower, and takes more memory


class Descent(Protocol):
    """A fast way to take the K local steps of `Client.descend`, the one seam for speed."""

    def explain(self, model: FlatModel) -> str:
        """Say how, in a few words."""

    def takes(self, terms: Sequence[Term]) -> bool:
        """Return whether this is for an objective with these terms; else the textbook loop is used."""

    def descend(self, client: "SimulatedClient", params: Tensor, step: AffineStep) -> Tensor:
        """Take a client's local steps from `params`; return y_K and note the losses in `client.losses`."""


class InPlace:
    """Each local step in place, in one pass over the weights. No term may have a gradient of its own."""

    def explain(self, model: FlatModel) -> str:
        return f"local steps in place, gradients by {model.kind}"

    def takes(self, terms: Sequence[Term]) -> bool:
        return all(isinstance(term, MaxEntropy) for term in terms)  # which has no gradient of its own

    def descend(self, client: "SimulatedClient", params: Tensor, step: AffineStep) -> Tensor:
        client.model.params.copy_(params)
        for _ in range(client.steps):
            client.losses.append(client.step(client.next_batch(), step))
        return client.model.release()


class PlainEngine:
    """Trains the clients of a cohort in this process, on one model; without a `descent`, by the textbook loop alone."""

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        seed: int,
        device: torch.device | str = "cpu",
        descent: Descent | None = None,
        why: str = "",
    ) -> None:
        self.task, self.seed, self.descent, self.why = task, seed, descent, why
        if descent is not None and not descent.takes(algorithm.terms):
            names = ", ".join(type(term).__name__ for term in algorithm.terms)
            self.descent, self.why = None, f"the objective has the terms {names}"
        self.device = torch.device(device)
        self.model = FlatModel(self.build_model(), task.loss, fast=descent is not None)
        self.initial_params = self.model.params.clone()
        self.sample = self.batch(task.data.train, np.arange(min(2, len(task.data.train))))
        check_fit(self.model, task, *self.sample)
        self.model.specialise(self.sample[0], algorithm.terms)
        self.draws = self._draws_random_numbers()

    @property
    def choice(self) -> str:
        textbook = f"the textbook loop, gradients by {self.model.kind}"
        how = textbook if self.descent is None else self.descent.explain(self.model)
        return f"one client at a time, {how} ({self.why})"

    def _draws_random_numbers(self) -> bool:
        """Return whether training the model draws from torch's generator, as dropout does."""
        generator = generator_of(self.device)
        before = generator.get_state()
        self.model.gradient(self.model.params.clone(), self.sample)
        return not torch.equal(generator.get_state(), before)

    def build_model(self) -> nn.Module:
        """Build the task's model with the run's initial values, which are those of the CPU on every device."""
        torch.manual_seed(torch_seed(self.seed, "model"))
        return self.task.model().to(self.device)

    def train(self, work: Round) -> Gathered:
        order = list(zip(work.cohort, work.steps, strict=True))
        return gather(self.uploads(work, order), work, self.task.data.clients)

    def uploads(self, work: Round, order: Sequence[tuple[int, int]]) -> Iterator[Upload]:
        return (self.train_client(self.model, work, client, steps) for client, steps in order)

    def train_client(
        self, model: FlatModel, work: Round, client: int, steps: int, pause: Pause | None = None
    ) -> Upload:
        """Run one client's update on `model`; return what it sends."""
        return upload_of(SimulatedClient(self, model, work, client, steps, pause), work, self.seed)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        return self.scores(self.parts(params, self.chunks()))

    def chunks(self) -> Sequence[int]:
        return range(0, len(self.task.data.test), CHUNK)

    def score(self, model: FlatModel, params: Tensor, start: int) -> tuple[float, float]:
        """Return what the chunk of test samples from `start` on adds to the mean loss and to the mean metric."""
        test, metric = self.task.data.test, self.task.metric
        inputs, targets = self.batch(test, np.arange(start, min(start + CHUNK, len(test))))
        outputs, share = model.outputs(params, inputs), len(targets) / len(test)
        measured = 0.0 if metric is None else float(metric(outputs, targets))
        return share * float(self.task.loss(outputs, targets)), share * measured

    def parts(self, params: Tensor, starts: Sequence[int]) -> Iterator[tuple[float, float]]:
        return (self.score(self.model, params, start) for start in starts)

    def scores(self, parts: Iterable[Sequence[float]]) -> dict[str, float]:
        loss = accuracy = 0.0
        for part in parts:
            loss, accuracy = loss + part[0], accuracy + part[1]
        return {"loss": loss} if self.task.metric is None else {"loss": loss, "accuracy": accuracy}

    def batch(self, samples: Samples, rows: Rows, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Take rows, with numbers of the model's floating type and labels as torch's losses want them."""
        inputs, targets = samples.batch(rows, rng)
        kind = self.model.params.dtype
        inputs = inputs.to(self.device, kind if inputs.is_floating_point() else None)
        return inputs, targets.to(self.device, kind if targets.is_floating_point() else torch.long)


def upload_of(client: "SimulatedClient", work: Round, seed: int) -> Upload:
    """Run `client_update` on a client, keep its state, and return what it sends after the transforms."""
    up, operations = work.meter.client_update(work.algorithm, work.down, client)
    state = State.expect(up, f"{type(work.algorithm).__name__}.client_update", work.down.params)
    state = state.to(work.down.params.dtype)  # as the model is sent; numpy's numbers are float64
    client.keep_state(work)
    upload = Upload(
        client=client.id,
        state=state,
        steps=client.steps,
        samples=client.samples,
        loss=client.mean_loss(),
        nbytes=state.nbytes,
        gradients=client.gradients,
        operations=operations,
    )
    return work.pipeline.encode(upload, seed, work.t)


class SimulatedClient(Client):
    """A client whose data are in this process."""

    def __init__(
        self,
        engine: PlainEngine,
        model: FlatModel,
        work: Round,
        client: int,
        steps: int,
        pause: Pause | None = None,
    ) -> None:
        data = engine.task.data
        self.id, self.samples, self.steps = client, data.size(client), steps
        self.first = int(data.offsets[client])  # of its rows
        if self.samples < 1:
            raise DataError(f"client {client} has no training samples; leave it out of the data")
        self.model, self.terms, self.round = model, work.algorithm.terms, work.t
        self.losses: list[Tensor | float] = []  # of the minibatches so far
        self.gradients = 0  # of one sample each
        self.start = work.down.params
        self._engine, self._work, self._pause = engine, work, pause
        self._rng: np.random.Generator | None = None
        self._augment: np.random.Generator | None = None
        self._batches = Batches(self.samples, engine.task.batch_size, engine.seed, work.t, client)
        self._rows: Rows | None = None  # of the last minibatch
        self._last: tuple[tuple[Tensor, Tensor], Tensor | None] | None = None  # it, and the state of torch's generator
        self._declared = work.algorithm.client_state(work.down.params)
        if not isinstance(self._declared, Mapping):
            raise ConfigError(f"{type(work.algorithm).__name__}.client_state must return a dict of vectors by name")
        self.state = work.states.load(client, self._declared) if work.states is not None else {}
        if engine.draws:
            generator_of(engine.device).manual_seed(torch_seed(engine.seed, "dropout", work.t, client))

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = stream(self._engine.seed, "client", self.round, self.id)
        return self._rng

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        batch = self._same_batch() if again else self.next_batch()
        self.model.params.copy_(params)
        loss = self.backward(batch)
        if not again:
            self.losses.append(loss)
        return self.pulled(params, self.model.flat_gradient())

    def full_gradient(self, params: Tensor) -> Tensor:
        total = torch.zeros_like(params)
        for rows in self._all_rows():
            self.model.params.copy_(params)
            self.model.backward(self._batch(rows), self.terms)
            total += self.pulled(params, self.model.flat_gradient()) * (len(rows) / self.samples)
        return total

    def loss(self, params: Tensor) -> float:
        total = 0.0
        for rows in self._all_rows():
            inputs, targets = self._engine.batch(self._engine.task.data.train, rows)
            outputs = self.model.outputs(params, inputs)
            total += float(self.model.loss(outputs, targets)) * (len(rows) / self.samples)
        return total

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        descent = self._engine.descent
        if descent is None or not isinstance(optimiser, AffineOptimiser):
            return super().descend(params, optimiser, stats)
        return descent.descend(self, params, self._work.fixed_step(optimiser, stats, self.model.params))

    def backward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the gradients of a minibatch at the model's parameters; return the mean loss."""
        return self.model.backward(batch, self.terms)

    def step(self, batch: tuple[Tensor, Tensor], step: AffineStep) -> Tensor:
        """Take a local step in place with the gradient of a minibatch; return the mean loss before it."""
        return self.model.step(batch, self.terms, step)

    def next_rows(self, count: int = 1) -> Rows:
        """Return the rows of the next `count` minibatches, when it is this client's turn."""
        if self._pause is not None and len(self.losses) == self._pause.minibatches:
            self._pause.wait()
        rows = self.first + self._batches.take(count)
        self._rows, self._last = rows[-(len(rows) // count) :], None  # of the last minibatch
        return rows

    def before_pause(self, count: int) -> int:
        """Return how many of the next `count` minibatches can be taken at once."""
        until = 0 if self._pause is None else self._pause.minibatches - len(self.losses)
        return min(count, until) if until > 0 else count

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next minibatch."""
        return self.next_batches(1)[0]

    def next_batches(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return the next `count` minibatches."""
        batches = [self._batch(rows) for rows in np.split(self.next_rows(count), count)]
        self._last = batches[-1], self._drawn()
        return batches

    def pulled(self, params: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the loss at `params` with those of the terms on the parameters."""
        for term in self.terms:
            pull = term.gradient(params, self.start)
            grad = grad if pull is None else grad + pull
        return grad

    def mean_loss(self) -> float:
        """Return the mean loss over the minibatches so far; raise if it is not finite."""
        if not self.losses:
            return 0.0
        loss = sum(map(float, self.losses)) / len(self.losses)
        if not math.isfinite(loss):
            raise DivergenceError(f"the training loss of client {self.id} is {loss} in round {self.round + 1}")
        return loss

    def keep_state(self, work: Round) -> None:
        """Save the vectors in `state`, in their declared types; raise unless they are those that are declared."""
        declared = self._declared
        if not isinstance(self.state, Mapping):
            raise ConfigError("client_update replaced client.state; replace vectors in it, by name")
        for name, vector in self.state.items():
            if name not in declared or not isinstance(vector, Tensor) or vector.shape != declared[name].shape:
                raise ConfigError(
                    f"client_update left {name!r} in client.state, but {type(work.algorithm).__name__}.client_state "
                    f"declares {', '.join(declared) or 'nothing'}; vectors keep the names and shapes declared there"
                )
        if missing := sorted(declared.keys() - self.state.keys()):
            raise ConfigError(f"client_update removed {', '.join(missing)} from client.state; replace vectors only")
        if work.states is not None and declared:
            kept = {name: vector.to(declared[name].dtype) for name, vector in self.state.items()}
            work.states.save(self.id, work.t, kept)

    def _same_batch(self) -> tuple[Tensor, Tensor]:
        """Return the last minibatch again, for the same random numbers in the model."""
        if self._rows is None:
            raise ConfigError("gradient(params, again=True) needs a minibatch: call gradient(params) first")
        if self._last is None:  # C code took the rows without making a batch of them
            self._last = self._batch(self._rows), self._drawn()
            return self._last[0]
        batch, drawn = self._last
        if drawn is not None:
            generator_of(self._engine.device).set_state(drawn)
        self.gradients += len(batch[0])
        return batch

    def _drawn(self) -> Tensor | None:
        """Return the state of torch's generator, where the model draws from it."""
        return generator_of(self._engine.device).get_state() if self._engine.draws else None

    def _all_rows(self) -> Iterator[Rows]:
        for start in range(0, self.samples, CHUNK):
            yield np.arange(self.first + start, self.first + min(start + CHUNK, self.samples))

    def _batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        self.gradients += len(rows)
        if self._augment is None:
            self._augment = stream(self._engine.seed, "augment", self.round, self.id)
        return self._engine.batch(self._engine.task.data.train, rows, self._augment)
