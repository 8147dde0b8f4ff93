"""Federated learning as a textbook writes it in PyTorch: the baseline of the bench.

A model, its state_dict, torch's optimiser, one client after the other. Batches come from the same data in the same way
as ours, so that only the training differs.
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.engines.batches import Batches
from fedgbo.engines.device import CPU
from fedgbo.models.paper import SparseLinear
from fedgbo.tasks.task import Task


class PlainLoop:
    """FedAvg, or FedGBO with SGDm if `beta` is given."""

    def __init__(
        self, task: Task, local_steps: int, lr: float, beta: float | None = None, device: torch.device = CPU
    ) -> None:
        self.task, self.local_steps, self.lr, self.beta, self.device = task, local_steps, lr, beta, device
        self.model, self.features = task.make_model(), 0
        if isinstance(self.model, SparseLinear):  # counts of words, as nn.Linear takes them
            classes, self.features = next(self.model.parameters()).shape
            self.model = nn.Linear(self.features, classes)
        self.model.to(device)
        self.momentum = [torch.zeros_like(p) for p in self.model.parameters()]

    def round(self, t: int) -> int:
        """Train one round; return how many local steps the clients took together."""
        data, start = self.task.data, copy.deepcopy(self.model.state_dict())
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        cohort = np.random.default_rng(t).choice(data.clients, self.task.cohort_size, replace=False)
        for client in cohort:
            self.model.load_state_dict(start)
            self.train(int(client), t)
            for name, value in self.model.state_dict().items():
                total[name] += value
        self.model.load_state_dict({name: value / len(cohort) for name, value in total.items()})
        if self.beta is not None:
            self._track(start)
        next(self.model.parameters()).flatten()[0].item()  # waits for the device
        return len(cohort) * self.local_steps

    def train(self, client: int, t: int) -> None:
        """Take a client's local steps of round t."""
        task, first, rng = self.task, int(self.task.data.offsets[client]), np.random.default_rng(t)
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.lr)
        batches = Batches(task.data.size(client), task.batch_size, 0, t, client, self.local_steps)
        for _ in range(self.local_steps):
            inputs, targets = task.data.train.batch(first + batches.take(), rng)
            optimiser.zero_grad()
            outputs = self.model(self.dense(inputs).to(self.device))
            targets = targets if targets.is_floating_point() else targets.long()
            loss = task.loss(outputs, targets.to(self.device))
            loss.backward()
            if self.beta is None:
                optimiser.step()
            else:
                self._step(self.beta)

    def dense(self, inputs: Tensor) -> Tensor:
        """Bags of words as vectors of counts, as nn.Linear takes them."""
        if not self.features:
            return inputs
        zeros = torch.zeros(len(inputs), self.features)
        return zeros.scatter_add_(1, inputs[..., 0].long(), inputs[..., 1])

    @torch.no_grad()
    def _step(self, beta: float) -> None:
        for p, m in zip(self.model.parameters(), self.momentum, strict=True):
            if p.grad is not None:
                p.sub_(self.lr * (beta * m + (1 - beta) * p.grad))

    @torch.no_grad()
    def _track(self, start: dict[str, Tensor]) -> None:
        beta, steps = self.beta or 0.0, self.lr * self.local_steps
        for (name, p), m in zip(self.model.named_parameters(), self.momentum, strict=True):
            gradient = ((start[name] - p) / steps - beta * m) / (1 - beta)
            m.mul_(beta).add_(gradient, alpha=1 - beta)
