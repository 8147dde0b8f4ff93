"""A client whose data are in this process: minibatches, gradients, what it keeps and what it uploads."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import Client, State, Upload
from fedgbo.core.errors import ConfigError, DataError, DivergenceError
from fedgbo.core.objective import Term, ruled
from fedgbo.core.optimiser import AffineOptimiser, AffineStep, Optimiser, Stats
from fedgbo.core.random import Rows, stream
from fedgbo.engines.batches import Batches, Pause
from fedgbo.engines.engine import LOCAL_BUFFERS, Round
from fedgbo.engines.evaluate import CHUNK
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.generators import GeneratorState
from fedgbo.tasks.task import Batch

if TYPE_CHECKING:
    from fedgbo.engines.plain import PlainEngine


class Descent(Protocol):
    """A fast way to take the K local steps of `Client.descend`, the one seam for speed."""

    def explain(self, model: FlatModel) -> str:
        """Say how, in a few words."""

    def takes(self, terms: Sequence[Term]) -> bool:
        """Return whether this is for an objective with these terms; else the textbook loop is used."""

    def descend(self, client: "SimulatedClient", params: Tensor, step: AffineStep) -> Tensor:
        """Take a client's local steps from `params`; return y_K and note the losses in `client.losses`."""


def upload_of(client: "SimulatedClient", work: Round, seed: int) -> Upload:
    """Run `client_update` on a client, keep its state, and return what it sends after the transforms."""
    try:
        up, operations = work.meter.client_update(work.algorithm, work.down, client)
    except DataError as error:
        raise DataError(f"client {client.id} in round {work.t + 1}: {error}") from error
    work.check_unwritten()
    return packed(client, up, operations, work, seed)


def packed(client: "SimulatedClient", up: State, operations: float | None, work: Round, seed: int) -> Upload:
    """Keep the client's state; return what it sends after the transforms."""
    state = State.expect(up, f"{type(work.algorithm).__name__}.client_update", work.down.params)
    state = state.with_buffers(client.moved_buffers()).to(work.down.params.dtype)  # as the model is sent
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
        self, engine: "PlainEngine", model: FlatModel, work: Round, client: int, steps: int, pause: Pause | None = None
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
        self._batches = Batches(self.samples, engine.task.batch_size, engine.seed, work.t, client, steps)
        self._rows: Rows | None = None  # of the last minibatch
        self._last: tuple[Batch, GeneratorState | None] | None = None  # it, and the generators' state after it
        self._declared = engine.origin.client_state(work.algorithm, work.origin)
        self.state = work.states.load(client, self._declared) if work.states is not None else {}
        local = self.state.pop(LOCAL_BUFFERS, None)
        model.buffers.load(work.down.buffers if local is None else local)
        self._generators = engine.generators if engine.draws else model.generator
        if self._generators is not None:
            self._generators.seed(engine.seed, "dropout", work.t, client)

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = stream(self._engine.seed, "client", self.round, self.id)
        return self._rng

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        return ruled(self._gradient, self.terms)(params, again)

    def full_gradient(self, params: Tensor) -> Tensor:
        return ruled(self._full_gradient, self.terms)(params, False)

    def _gradient(self, params: Tensor, again: bool) -> Tensor:
        batch = self._same_batch() if again else self.next_batch()
        self.model.load(params)
        loss = self.backward(batch)
        if not again:
            self.losses.append(loss)
        return self.pulled(params, self.model.flat_gradient(params))

    def _full_gradient(self, params: Tensor, again: bool) -> Tensor:
        total = torch.zeros_like(params)
        for rows in self.all_rows():
            self.model.load(params)
            self.model.backward(self.batch(rows), self.terms)
            total += self.pulled(params, self.model.flat_gradient(params)) * (len(rows) / self.samples)
        return total

    def loss(self, params: Tensor) -> float:
        total = 0.0
        for rows in self.all_rows():
            inputs, targets = self._engine.batch(self._engine.task.data.train, rows)
            outputs = self.model.outputs(params, inputs)
            total += float(self.model.loss_of(outputs, targets)) * (len(rows) / self.samples)
        return total

    def descend(self, params: Tensor, optimiser: Optimiser, stats: Stats) -> Tensor:
        descent = self._engine.descent
        if descent is None or not isinstance(optimiser, AffineOptimiser):
            return super().descend(params, optimiser, stats)
        stats = optimiser.anchor(stats, params)
        return descent.descend(self, params, self._work.fixed_step(optimiser, stats, self.model.params))

    def backward(self, batch: Batch) -> Tensor:
        """Compute the gradients of a minibatch at the model's parameters; return the mean loss."""
        return self.model.backward(batch, self.terms)

    def step(self, batch: Batch, step: AffineStep) -> Tensor:
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

    def next_batch(self, *, keep: bool = True) -> Batch:
        """Return the next minibatch, and keep it for a gradient that is taken again."""
        batch = self.batch(self.next_rows())
        self._last = (self._engine.kept(batch), self._drawn()) if keep else None
        return batch

    def next_batches(self, count: int) -> list[Batch]:
        """Return the next `count` minibatches."""
        batches = [self.batch(rows) for rows in np.split(self.next_rows(count), count)]
        self._last = self._engine.kept(batches[-1]), self._drawn()
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

    def moved_buffers(self) -> Tensor | None:
        """Return the difference that training made to the buffers, if they are averaged."""
        self.model.check_places()
        self.model.buffers.check_constant()
        before, after = self._work.down.buffers, self._buffers()
        return None if before is None or after is None else before - after

    def _buffers(self) -> Tensor | None:
        return self.model.buffers.values(self.start.dtype)

    def keep_state(self, work: Round) -> None:
        """Save the vectors in `state`, in their declared types; raise unless they are those that are declared."""
        declared = self._declared
        if not declared and type(self.state) is dict and not self.state:
            return
        if not isinstance(self.state, Mapping):
            raise ConfigError("client_update replaced client.state; replace vectors in it, by name")
        if (buffers := self._buffers()) is not None and LOCAL_BUFFERS in declared:
            self.state = {**self.state, LOCAL_BUFFERS: buffers}
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

    def _same_batch(self) -> Batch:
        """Return the last minibatch again, for the same random numbers in the model."""
        if self._rows is None:
            raise ConfigError("gradient(params, again=True) needs a minibatch: call gradient(params) first")
        if self._last is None:  # C code took the rows without making a batch of them
            batch = self.batch(self._rows)
            self._last = self._engine.kept(batch), self._drawn()
            return batch
        batch, drawn = self._last
        if drawn is not None and self._generators is not None:
            self._generators.restore(drawn)
        self.gradients += len(self._rows)
        return self._engine.kept(batch)

    def _drawn(self) -> GeneratorState | None:
        """Return the state of the generators that training draws from, if it does."""
        return None if self._generators is None else self._generators.state()

    def all_rows(self) -> Iterator[Rows]:
        """Yield the rows of all samples, a chunk at a time."""
        for start in range(0, self.samples, CHUNK):
            yield np.arange(self.first + start, self.first + min(start + CHUNK, self.samples))

    def batch(self, rows: Rows) -> Batch:
        """Return these samples, augmented for training."""
        self.gradients += len(rows)
        if self._augment is None:
            self._augment = stream(self._engine.seed, "augment", self.round, self.id)
        return self._engine.batch(self._engine.task.data.train, rows, self._augment)
