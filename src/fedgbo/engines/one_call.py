"""All local steps of a client in one call of C code: for stacks of known layers, and for sparse linear models."""

import sys
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineStep, Proximal, Term
from fedgbo.data.samples import SparseSamples, TensorSamples
from fedgbo.engines.client import SimulatedClient
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers.network import TERMS, Network
from fedgbo.models.paper import SparseLinear
from fedgbo.native import TYPES, addresses, library
from fedgbo.tasks.task import Batch, Task

CHUNK = 65_536  # row numbers that are checked at once: the data may be larger than memory
COLUMNS = {"indptr": np.int64, "indices": np.uint16, "counts": np.uint8, "labels": np.uint8}
ROOM = 4 * 2**20  # bytes of the minibatches, or of the masks of dropout, that are made before a call


class OneCall:
    """Between the local steps of a client there is no Python, so that threads never wait for its lock."""

    def __init__(self, task: Task, network: Network) -> None:
        train, offsets = task.data.train, task.data.offsets
        self._samples: tuple[Tensor, Tensor] | None = None  # that the C code gathers minibatches from
        self._most = sys.maxsize  # minibatches of a call
        within = offsets[0] >= 0 and offsets[-1] <= len(train) and bool((np.diff(offsets) >= 0).all())
        if type(train) is TensorSamples and within and network.takes(train.inputs, train.targets):
            self._samples = train.inputs.contiguous(), train.targets.contiguous()
        else:
            batch = task.batch_size or int(np.diff(offsets).max())
            self._most = max(1, ROOM // (batch * network.sample_bytes))
        self._draws = network.plan.draws
        if self._draws:
            size = task.batch_size or int(np.diff(offsets).max())
            self._most = min(self._most, max(1, ROOM // (size * network.mask_bytes)))
        if self._draws and type(train) is not TensorSamples:
            self._most = 1  # the data may draw from the generators that dropout draws from, in turns with it

    def explain(self, model: FlatModel) -> str:
        return "all local steps of a client in one call of C code"

    def takes(self, terms: Sequence[Term]) -> bool:
        return all(type(term) in TERMS for term in terms)

    def descend(self, client: SimulatedClient, params: Tensor, step: AffineStep) -> Tensor:
        y = torch.empty_like(client.model.params).copy_(params)
        start = client.start.to(y.dtype).contiguous() if client.terms else params
        network, left = cast(Network, client.model.network), client.steps
        while left > 0:
            count = min(client.before_pause(left), self._most)
            if self._draws and count == left > 1:
                count -= 1  # the last one alone: a gradient that is taken again draws its numbers again
            left -= count
            if self._samples is not None and not (self._draws and left == 0):
                rows = client.next_rows(count)
                client.gradients += len(rows)
                with client.model.drawing():
                    losses = network.descend(y, (*self._samples, rows), count, step, client.terms, start)
                client.losses.extend(losses)
                continue
            made = client.next_batches(count)
            sizes = {len(targets) for _, targets in made}  # a collate may leave samples out
            if all(network.takes(*batch) for batch in made) and len(sizes) == 1:
                inputs, targets = torch.cat([x for x, _ in made]), torch.cat([y for _, y in made])
                batches = inputs, targets, np.arange(len(inputs))
                with client.model.drawing():
                    client.losses.extend(network.descend(y, batches, count, step, client.terms, start))
            else:
                y = _by_autograd(client, y, made, step)
        return y


def _by_autograd(client: SimulatedClient, y: Tensor, batches: Sequence[Batch], step: AffineStep) -> Tensor:
    """Take a local step for each batch, of shapes or types that the C code was not read for."""
    for batch in batches:
        client.model.load(y)
        client.losses.append(client.backward(batch))
        y = step(y, client.pulled(y, client.model.flat_gradient(y)))
    return y


class SparseDescent:
    """For linear models on sparse samples.

    A gradient touches only the features of its minibatch, so its cost does not grow with the model.
    """

    def __init__(self, samples: SparseSamples, features: int, classes: int, batch_size: int) -> None:
        self._shape, self._batch = (features, classes), batch_size
        self._columns = [np.require(getattr(samples, name), kind, "C") for name, kind in COLUMNS.items()]
        self._addresses = [column.ctypes.data for column in self._columns]
        self._functions = {kind: getattr(library(), f"fedgbo_sparse_{name}") for kind, name in TYPES.items()}

    def explain(self, model: FlatModel) -> str:
        return "all local steps of a client in one call of C code for linear models on sparse samples"

    def takes(self, terms: Sequence[Term]) -> bool:
        return all(type(term) is Proximal for term in terms)

    def descend(self, client: SimulatedClient, params: Tensor, step: AffineStep) -> Tensor:
        y, batch = torch.empty_like(client.model.params).copy_(params), self._batch  # raises for another length
        start, pull = params, 0.0
        if client.terms:  # FedProx's
            start = client.start.to(y.dtype).contiguous()
            pull = float(sum(term.mu for term in client.terms if isinstance(term, Proximal)))
        rows = torch.from_numpy(client.next_rows(client.steps))  # torch gives its address faster than numpy
        scores = torch.empty(batch * self._shape[1], dtype=y.dtype)
        offset, scale, rate = addresses(step)
        loss = self._functions[y.dtype](
            *(*self._shape, *self._addresses, client.steps, batch, rows.data_ptr(), start.data_ptr()),
            *(offset, scale, rate, pull, scores.data_ptr(), y.data_ptr()),
        )
        client.gradients += len(rows)
        client.losses.extend([loss] * client.steps)  # their mean, as often
        return y


def sparse_descent(task: Task, module: nn.Module) -> SparseDescent | None:
    """Return the descent if the task is a linear model on sparse samples with cross-entropy, and its data are sound."""
    train = task.data.train
    if type(train) is not SparseSamples or not _is_sparse_linear(module) or task.loss is not functional.cross_entropy:
        return None
    weight = next(module.parameters())
    sound = task.batch_size is not None and weight.dtype in TYPES and _is_sound(train, *weight.shape)
    within = task.data.offsets[0] >= 0 and task.data.offsets[-1] <= len(train)
    if library() is None or not sound or not within or not bool((np.diff(task.data.offsets) >= 0).all()):
        return None
    return SparseDescent(train, weight.shape[1], weight.shape[0], task.batch_size or 0)


def _is_sparse_linear(module: nn.Module) -> bool:
    """Return whether the module is a SparseLinear and nothing more: trained whole, with nothing hooked on."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) is SparseLinear and not hooked and all(p.requires_grad for p in module.parameters())


def _is_sound(samples: SparseSamples, classes: int, features: int) -> bool:
    """Return whether C code may trust the arrays: types, rows that follow each other, features and labels in range."""
    if any(getattr(samples, name).dtype != kind for name, kind in COLUMNS.items()):
        return False
    starts = range(0, len(samples), CHUNK)
    rising = samples.indptr[0] == 0 and all((np.diff(samples.indptr[at : at + CHUNK + 1]) >= 0).all() for at in starts)
    indices, labels = samples.indices, samples.labels
    return bool(rising and indices.max(initial=0) < features and labels.max(initial=0) < classes)
