"""Local steps of a linear model on sparse samples: all K steps of a client in one call of C code (native/sparse.c)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgbo.core import AffineStep, Proximal, Term
from fedgbo.data.samples import SparseSamples
from fedgbo.engines.client import SimulatedClient
from fedgbo.engines.flat import FlatModel
from fedgbo.models.paper import SparseLinear
from fedgbo.native import TYPES, addresses, library
from fedgbo.tasks.task import Task

CHUNK = 65_536  # row numbers that are checked at once: the data may be larger than memory
COLUMNS = {"indptr": np.int64, "indices": np.uint16, "counts": np.uint8, "labels": np.uint8}


class SparseDescent:
    """A step's gradient touches only the features of its minibatch, so its cost does not grow with the model."""

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
