"""All local steps of a client in one call of C code, for networks that are a stack of known layers."""

import sys
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import AffineStep, Term
from fedgbo.data.samples import TensorSamples
from fedgbo.engines.client import SimulatedClient
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers.network import TERMS, Network
from fedgbo.tasks.task import Batch, Task

ROOM = 4 * 2**20  # bytes of minibatches that are made before a call, where the C code cannot read the samples itself


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
            if all(network.takes(*batch) for batch in made):
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
        y = step(y, client.pulled(y, client.model.flat_gradient()))
    return y
