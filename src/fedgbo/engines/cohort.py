"""Many clients at a time, for accelerators: `client_update` runs once for a group of clients, under torch.func.vmap.

The vectors of a group are stacked, so that an operation is launched once for all of its clients. A trial before the
first round finds out whether vmap can do that with the model and the algorithm; if not, the plain engine is used.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedgbo.core import Client, ConfigError, FederatedAlgorithm, FedGBOError, State, Upload, at_round
from fedgbo.core.errors import DataError
from fedgbo.core.objective import ruled
from fedgbo.core.optimiser import Stats
from fedgbo.costs.operations import Meter
from fedgbo.data.samples import TensorSamples
from fedgbo.data.tree import leaves, map_tensors
from fedgbo.engines.client import SimulatedClient, packed
from fedgbo.engines.engine import Gathered, Round, gather
from fedgbo.engines.evaluate import Chunk, OwnModels, Piece, Scores
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers import STOCK
from fedgbo.engines.plain import PlainEngine
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.tasks.task import Batch

ROOM = 2 * 2**30  # bytes that a group may take, roughly
COPIES = 8  # of a client's parameters: the model, the gradient, the upload, and what formulas make in between
LAYERS = 64  # of a minibatch: its activations and their gradients, as a guess


class UnequalError(FedGBOError):
    """Clients of a group differ in something that is one value for all of them."""


class Group(Client):
    """Clients with the same number of local steps as one: under vmap, a vector stands for one vector of each client."""

    def __init__(self, clients: Sequence[SimulatedClient], engine: PlainEngine, place: Tensor, state: Stats) -> None:
        self.steps, self.state = clients[0].steps, dict(state)
        self.losses: list[Tensor] = []
        self.gradients = 0  # of one sample of each client
        self.sized = False  # whether the number of samples mattered
        self._clients, self._engine, self._place = clients, engine, place
        self._last: tuple[Batch, int] | None = None  # minibatch, and its number of samples

    def __getattr__(self, name: str) -> Any:
        if name == "samples":
            return self._size()
        raise UnequalError(f"client_update asks for client.{name}")

    @property
    def rng(self) -> np.random.Generator:
        raise UnequalError("client_update draws random numbers")

    def loss(self, params: Tensor) -> float:
        raise UnequalError("client_update asks for client.loss")

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        return ruled(self._gradient, self._clients[0].terms)(params, again)

    def full_gradient(self, params: Tensor) -> Tensor:
        return ruled(self._full_gradient, self._clients[0].terms)(params, False)

    def _gradient(self, params: Tensor, again: bool) -> Tensor:
        if not again:
            self._last = self._next_batch()
        if self._last is None:
            raise ConfigError("gradient(params, again=True) needs a minibatch: call gradient(params) first")
        grad, loss = self._at(params, *self._last)
        if not again:
            self.losses.append(loss)
        return grad

    def _full_gradient(self, params: Tensor, again: bool) -> Tensor:
        total, samples = torch.zeros_like(params), self._size()
        for rows in zip(*(client.all_rows() for client in self._clients), strict=True):
            grad, _ = self._at(params, self._batch(rows), len(rows[0]))
            total = total + grad * (len(rows[0]) / samples)
        return total

    def _at(self, params: Tensor, batch: Batch, samples: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss of a stacked minibatch, as those of one client."""
        self.gradients += samples
        own = map_tensors(lambda x: x.index_select(0, self._place)[0], batch)
        one = self._clients[0]
        grad, loss = one.model.pure_gradient(params, own, one.terms)
        return one.pulled(params, grad), loss

    def _next_batch(self) -> tuple[Batch, int]:
        rows = [client.next_rows() for client in self._clients]
        return self._batch(rows), len(rows[0])

    def _batch(self, rows: Sequence[Any]) -> Batch:
        """Return a minibatch of each client, stacked."""
        train = self._engine.task.data.train
        if type(train) is TensorSamples:  # nothing is random: one gather for all
            batch = self._engine.batch(train, np.concatenate(rows))
            stacked: Batch = map_tensors(lambda x: x.reshape(len(rows), -1, *x.shape[1:]), batch)
            return stacked
        try:
            stacked = default_collate([client.batch(own) for client, own in zip(self._clients, rows, strict=True)])
        except (RuntimeError, TypeError) as error:
            raise UnequalError(f"minibatches cannot be stacked: {error}") from error
        return stacked

    def _size(self) -> int:
        """Return the number of samples of each client."""
        self.sized = True
        if len(sizes := {client.samples for client in self._clients}) > 1:
            raise UnequalError("client_update depends on the number of samples")
        return sizes.pop()


class CohortEngine:
    """Trains groups of clients under vmap; a client that has no other of its kind is trained by the plain engine.

    A group is made of clients that follow each other in the cohort and take equally many local steps, so that memory
    does not grow with the cohort. Which clients are together can change the last digits of what they compute.
    """

    def __init__(self, plain: PlainEngine, algorithm: FederatedAlgorithm) -> None:
        self.plain, self.task, self.seed = plain, plain.task, plain.seed
        self.origin, self.sample, self.scorer = plain.origin, plain.sample, plain.scorer
        self.model = FlatModel(plain.build_model(), plain.task.loss, STOCK)
        self.model.specialise(plain.sample[0], algorithm.terms)
        self._sized = plain.task.batch_size is None
        self._width = self._most()

    @property
    def choice(self) -> str:
        how = f"client_update once for up to {self._width} clients, by torch.func.vmap"
        return f"many clients at a time, {how} ({self.plain.why})"

    def refuses(self, algorithm: FederatedAlgorithm) -> str | None:
        """Train two clients for a local step; return why this engine cannot train the model with the algorithm."""
        if self.task.cohort_size < 2:
            return "there is only one client per round"
        if self.plain.draws:
            return "the model or the data draw random numbers"
        if self.plain.model.buffers.moving:
            return "training changes buffers of the model"
        try:
            self._try_out(at_round(algorithm, 0))
        except Exception as error:  # whatever vmap, or a user's model or algorithm, raises
            said = f"{error}".split(". ")[0].splitlines()[0]
            return said if isinstance(error, UnequalError) else f"torch.func.vmap fails: {said}"
        return None

    def _try_out(self, algorithm: FederatedAlgorithm) -> None:
        generators, down = self.plain.generators, algorithm.broadcast(algorithm.init(self.origin.params))
        twice, pipeline = [(0, 1), (0, 1)], Pipeline(FixedSize(1))
        with generators.kept():
            before = generators.marks()
            work = Round(0, algorithm, down, [0, 0], [1, 1], pipeline, Meter(algorithm), _FirstStates())
            self._sized |= self._train(work, twice)[1].sized
            if generators.drawn_from(before) is not None:
                raise UnequalError("client_update draws random numbers")

    def train(self, work: Round) -> Gathered:
        order = list(zip(work.cohort, work.steps, strict=True))
        return gather(self.uploads(work, order), work, self.task.data.clients)

    def uploads(self, work: Round, order: Sequence[tuple[int, int]]) -> Iterator[Upload]:
        with self.plain.unshared_draws():
            for begin in range(0, len(order), self._width):
                groups: dict[Any, list[tuple[int, int]]] = defaultdict(list)
                for client, steps in order[begin : begin + self._width]:
                    groups[steps, self.task.data.size(client) if self._sized else 0].append((client, steps))
                done = {upload.client: upload for who in groups.values() for upload in self._group(work, who)}
                yield from (done[client] for client, _ in order[begin : begin + self._width])

    def _group(self, work: Round, who: Sequence[tuple[int, int]]) -> Sequence[Upload]:
        if len(who) > 1:
            try:
                return self._train(work, who)[0]
            except UnequalError:  # minibatches of different shapes, such as texts that are as long as the longest one
                pass
        return [self.plain.train_client(self.plain.model, work, *one) for one in who]

    def _train(self, work: Round, who: Sequence[tuple[int, int]]) -> tuple[list[Upload], Group]:
        """Run `client_update` once for clients with the same number of local steps; return their uploads, and them."""
        clients = [SimulatedClient(self.plain, self.model, work, client, steps) for client, steps in who]
        states = {name: torch.stack([one.state[name] for one in clients]) for name in clients[0].state}
        groups: list[tuple[Group, float | None]] = []
        like = work.down.params

        def update(place: Tensor, state: Stats) -> tuple[Mapping[str, Tensor], Stats, Tensor]:
            group = Group(clients, self.plain, place, state)
            up, operations = work.meter.client_update(work.algorithm, work.down, group, len(clients))
            groups.append((group, operations))
            losses = torch.stack(group.losses) if group.losses else like.new_zeros(0)
            up = State.expect(up, f"{type(work.algorithm).__name__}.client_update", like)
            return up.to(like.dtype).tensors(), group.state, losses

        places = torch.arange(len(who), device=like.device).unsqueeze(1)
        try:
            ups, kept, losses = torch.func.vmap(update)(places, states)
        except DataError as error:
            raise DataError(f"clients {who[0][0]} to {who[-1][0]} in round {work.t + 1}: {error}") from error
        work.check_unwritten()
        ((group, operations),) = groups
        uploads = []
        for i, (one, own) in enumerate(zip(clients, losses.tolist(), strict=True)):
            one.losses, one.gradients = own, group.gradients
            one.state = {name: x[i] for name, x in kept.items()}
            up = State.of_tensors({name: x[i] for name, x in ups.items()})
            uploads.append(packed(one, up, operations, work, self.seed))
        return uploads, group

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        return self.plain.evaluate(server, own_models)

    def chunks(self, own_models: OwnModels | None = None) -> Sequence[Chunk]:
        return self.plain.chunks(own_models)

    def pieces(self, server: State, chunks: Sequence[Chunk], own_models: OwnModels | None = None) -> Iterator[Piece]:
        return self.plain.pieces(server, chunks, own_models)

    def _most(self) -> int:
        """Return how many clients a group may have."""
        batch = self.task.batch_size or int(np.diff(self.task.data.offsets).max())
        numbers = sum(x[0].numel() for x in leaves(self.sample[0]) if isinstance(x, Tensor))  # of a sample
        return max(2, ROOM // (4 * (COPIES * self.model.params.numel() + LAYERS * batch * numbers)))


class _FirstStates:
    """Clients before their first round, which keep nothing."""

    def load(self, client: int, initial: Stats) -> dict[str, Tensor]:
        return dict(initial)

    def save(self, client: int, t: int, state: Stats) -> None:
        """Keep nothing."""
