"""The plain engine: one client after the other, in ascending order. All other engines are checked against it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.core import FederatedAlgorithm, State, Upload
from fedgbo.core.errors import ConfigError, FedGBOError
from fedgbo.core.objective import MaxEntropy, Term
from fedgbo.core.optimiser import AffineOptimiser, AffineStep, Optimiser
from fedgbo.core.random import Rows, stream
from fedgbo.data.samples import Samples
from fedgbo.data.tree import leaves, map_tensors
from fedgbo.engines.batches import Pause
from fedgbo.engines.client import Descent, SimulatedClient, upload_of
from fedgbo.engines.engine import Gathered, Origin, Round, gather
from fedgbo.engines.evaluate import (
    Chunk,
    OwnModels,
    Piece,
    Scorer,
    Scores,
    check_local,
    chunks_of,
)
from fedgbo.engines.fit import check_fit, fastest
from fedgbo.engines.flat import FlatModel, input_type
from fedgbo.engines.generators import Generators, OwnGenerator
from fedgbo.engines.layers import STOCK
from fedgbo.engines.module import Blueprint
from fedgbo.tasks.task import Batch, Task

TRIED = 8  # samples of the gradient that is taken before the first round


class InPlace:
    """Each local step in place, in one pass over the weights. No term may have a gradient of its own."""

    def explain(self, model: FlatModel) -> str:
        return f"local steps in place, gradients by {model.kind}"

    def takes(self, terms: Sequence[Term]) -> bool:
        return all(isinstance(term, MaxEntropy) for term in terms)  # which has no gradient of its own

    def descend(self, client: "SimulatedClient", params: Tensor, step: AffineStep) -> Tensor:
        client.model.load(params)
        for left in reversed(range(client.steps)):
            client.losses.append(client.step(client.next_batch(keep=left == 0), step))
        return client.model.release()


class PlainEngine:
    """Trains the clients of a cohort in this process, on one model; without a `descent`, by the textbook loop alone."""

    @torch.inference_mode(False)  # as it may be called in an evaluation of the user's
    @torch.enable_grad()
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
        self.device, self.generators = torch.device(device), Generators(torch.device(device))
        first = task.data.train.batch(np.arange(min(2, len(task.data.train))))
        with self.generators.kept():
            self._blueprint = Blueprint.of(task.make_model, seed, map_tensors(_default_type, first[0]))
        optimisers = [own for name, own in vars(algorithm).items() if isinstance(own, Optimiser) and name != "server"]
        self._not_affine = [type(own).__name__ for own in optimisers if not isinstance(own, AffineOptimiser)]
        module = self.build_model()
        self._input_type = input_type(module)
        self.sample = self.on_device(first)
        check_fit(FlatModel(module, task.loss, STOCK), task, *self.sample)
        self._level = STOCK
        if descent is not None:
            with self.generators.kept():
                self._level = fastest(self.build_model, task, self._first_batch(), algorithm.terms)
        self.model = FlatModel(self.build_model(), task.loss, self._level)
        self.model.specialise(self.sample[0], algorithm.terms)
        self.draws, self.origin = self._try_out(self.model.params.clone())
        self.scoring_draws, self.scorer = self._try_scoring()
        self.watched = self.draws  # whether a client_update was watched for draws from process-wide generators

    @property
    def choice(self) -> str:
        how, why = f"the textbook loop, gradients by {self.model.kind}", self.why
        if self._not_affine:
            why = f"{', '.join(self._not_affine)}: not affine in the gradient"
        elif self.descent is not None:
            how = self.descent.explain(self.model)
        return f"one client at a time, {how} ({why})"

    def _try_out(self, params: Tensor) -> tuple[bool, Origin]:
        """Take a gradient; return whether that draws random numbers, as dropout does, and where the run starts."""
        found = list[Tensor]()
        with self.generators.kept():
            self.generators.seed(self.seed, "try out")
            before = self.generators.marks()
            self.model.buffers.find(lambda: found.extend(self._first_gradient(params)))
            draws = self.generators.drawn_from(before) is not None
        self._blueprint.check_originals()
        norm = torch.linalg.vector_norm(found[0].cpu(), dtype=torch.float64)
        fingerprint, buffers = {"loss": float(found[1]), "gradient": float(norm)}, self.model.buffers
        moved = {"buffers" if self.task.buffers == "average" else "local_buffers": buffers.values(params.dtype)}
        return draws, Origin(self._blueprint, params, fingerprint, buffers.moving, **moved)

    def _first_gradient(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of a few samples, and their loss."""
        batch = self._first_batch()
        before = _writes(batch)
        found = self.model.gradient(params, batch)
        self._changes_inputs = _writes(batch) != before
        return found

    def _first_batch(self) -> Batch:
        data = self.task.data.train
        count = min(self.task.batch_size or TRIED, TRIED, len(data))
        rows = np.linspace(0, len(data) - 1, count, dtype=np.int64)
        return self.batch(data, rows, stream(self.seed, "try out"))

    def draw_apart(self) -> bool:
        """Let the model draw from a generator of its own; return whether the numbers that it draws stay the same.

        They do not if the data, numpy or Python draw, or if the backward pass draws again, as that of a checkpoint.
        """
        own = OwnGenerator()
        with self.generators.kept():
            self.generators.seed(self.seed, "try out")
            expected, _ = self._first_gradient(self.origin.params)
            own.seed(self.seed, "try out")
            self.generators.seed(self.seed, "apart")  # other numbers, in case something still draws from these
            before, self.model.generator = self.generators.marks(), own
            try:
                same = torch.equal(self._first_gradient(self.origin.params)[0], expected)
            except FedGBOError:  # such as from a compiled module, which may not run under a dispatch mode
                same = False
            apart = same and self.generators.drawn_from(before) is None
        self.draws, self.watched = not apart, not apart
        self.model.generator = own if apart else None
        return apart

    def kept(self, batch: Batch) -> Batch:
        """Return a batch for a gradient that is taken again: a copy if the model changes its inputs in place."""
        return (map_tensors(torch.clone, batch[0]), batch[1]) if self._changes_inputs else batch

    def new_model(self, terms: Sequence[Term]) -> FlatModel:
        """Return another model like the engine's own, for another worker."""
        model = FlatModel(self.build_model(), self.task.loss, self._level)
        model.specialise(self.sample[0], terms)
        model.buffers.adopt(self.model.buffers)
        model.generator = None if self.model.generator is None else OwnGenerator()
        return model

    def build_model(self) -> nn.Module:
        """Return a copy of the task's model with the run's initial values, which are the CPU's on every device."""
        with self.generators.kept():
            return self._blueprint.copy(share_frozen=True).to(self.device)

    def train(self, work: Round) -> Gathered:
        order = list(zip(work.cohort, work.steps, strict=True))
        return gather(self.uploads(work, order), work, self.task.data.clients)

    def uploads(self, work: Round, order: Sequence[tuple[int, int]]) -> Iterator[Upload]:
        with self.unshared_draws():
            for client, steps in order:
                yield self.train_client(self.model, work, client, steps)

    def train_client(
        self, model: FlatModel, work: Round, client: int, steps: int, pause: Pause | None = None
    ) -> Upload:
        """Run one client's update on `model`; return what it sends."""
        if not self.watched:
            return self._watched_client(model, work, client, steps)
        return upload_of(SimulatedClient(self, model, work, client, steps, pause), work, self.seed)

    def _watched_client(self, model: FlatModel, work: Round, client: int, steps: int) -> Upload:
        """Train the first client, and watch it for draws from process-wide generators.

        If there are any, it is trained again with generators of its own, and from then on every client has them.
        """
        before = self.generators.marks()
        upload = upload_of(SimulatedClient(self, model, work, client, steps), work, self.seed)
        self.watched, self.draws = True, self.generators.drawn_from(before) is not None
        if self.draws:
            model.generator = None  # the model draws from the generators that the client_update draws from
        return self.train_client(model, work, client, steps) if self.draws else upload

    @contextmanager
    def unshared_draws(self) -> Iterator[None]:
        """Raise if clients draw from process-wide generators though the first one did not."""
        before = None if self.draws else self.generators.marks(python=False)  # other threads may draw from Python's
        yield
        if before is not None and not self.draws and (whose := self.generators.drawn_from(before)) is not None:
            raise ConfigError(
                f"a client drew random numbers from {whose}'s process-wide generator, but the first client did not, so "
                "that the result would depend on the order of clients; draw from client.rng in client_update, and from "
                "the rng that Samples.batch is given"
            )

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        chunks = self.chunks(own_models)
        return self.scorer.scores(chunks, self.pieces(server, chunks, own_models))

    def chunks(self, own_models: OwnModels | None = None) -> Sequence[Chunk]:
        if self.origin.local_buffers is not None:
            check_local(self.task.data, own_models)
        return chunks_of(self.task.data, local=own_models is not None or self.origin.local_buffers is not None)

    def pieces(self, server: State, chunks: Sequence[Chunk], own_models: OwnModels | None = None) -> Iterator[Piece]:
        return (self.score(self.model, server, chunk, own_models) for chunk in chunks)

    def score(self, model: FlatModel, server: State, chunk: Chunk, own_models: OwnModels | None = None) -> Piece:
        """Return what a chunk of samples adds to the scores."""
        if self.scoring_draws:
            self.generators.seed(self.seed, "evaluation", chunk.number)
        inputs, targets = self.batch(chunk.samples, chunk.rows)
        used = server if own_models is None or chunk.client is None else own_models(chunk.client)
        model.buffers.load(used.buffers)
        return self.scorer.piece(len(chunk.rows), model.outputs(used.params, inputs), targets)

    def _try_scoring(self) -> tuple[bool, Scorer]:
        """Score a few samples; return whether that draws random numbers, and the scorer."""
        data = self.task.data
        samples = next((own for name, own in data.all_samples().items() if name != "training"), data.train)
        with self.generators.kept():
            before = self.generators.marks()
            inputs, targets = self.batch(samples, np.arange(min(TRIED, len(samples))))
            outputs = self.model.outputs(self.origin.params, inputs)
            scorer = Scorer(self.task, (outputs, targets))
            return self.generators.drawn_from(before) is not None, scorer

    def batch(self, samples: Samples, rows: Rows, rng: np.random.Generator | None = None) -> Batch:
        """Take rows, as `on_device` returns them."""
        return self.on_device(samples.batch(rows, rng))

    def on_device(self, batch: Batch) -> Batch:
        """Move a batch to the device: numbers in the model's floating type, whole numbers in targets as int64."""
        kind = self._input_type
        inputs, targets = batch
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):  # the usual case, without the cost of a tree
            return self._inputs(inputs, kind), self._targets(targets, kind)
        return map_tensors(lambda x: self._inputs(x, kind), inputs), map_tensors(
            lambda x: self._targets(x, kind), targets
        )

    def _inputs(self, x: Tensor, kind: torch.dtype) -> Tensor:
        return x.to(self.device, kind if x.is_floating_point() else None)

    def _targets(self, x: Tensor, kind: torch.dtype) -> Tensor:
        return x.to(self.device, kind if x.is_floating_point() else torch.long)


def _default_type(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype()) if x.is_floating_point() else x


def _writes(batch: Batch) -> list[int]:
    """Return torch's count of writes to each tensor of the inputs."""
    return [x._version for x in leaves(batch[0]) if isinstance(x, Tensor)]
