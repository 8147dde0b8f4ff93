"""The process-wide random generators that a user's code may draw from: torch's, numpy's and Python's.

Our own code draws from named streams only. A model, a data set or a `client_update` may draw from these generators all
the same, as dropout does. Where one does, clients are trained one at a time, each with generators seeded for the client
and the round, so that a result depends neither on the order of the clients nor on the number of workers.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core import torch_seed
from fedgbo.engines.device import CPU, generator_of


@dataclass(frozen=True, eq=False)
class GeneratorState:
    """The states of all generators at one moment."""

    torch: tuple[Tensor, ...]
    numpy: Any
    python: Any


class Generators:
    """torch's generators for the CPU and a device, numpy's global generator and Python's."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._torch = [torch.default_generator] + ([] if device.type == "cpu" else [generator_of(device)])

    def seed(self, seed: int, purpose: str, *key: int) -> None:
        """Seed all generators from the stream of that name."""
        number = torch_seed(seed, purpose, *key)
        for generator in self._torch:
            generator.manual_seed(number)
        np.random.seed(number % 2**32)
        random.seed(number)

    def state(self) -> GeneratorState:
        """Return the states, to be compared or restored."""
        drawn = tuple(generator.get_state() for generator in self._torch)
        return GeneratorState(drawn, np.random.get_state(), random.getstate())

    def restore(self, state: GeneratorState) -> None:
        """Put all generators back into an earlier state."""
        for generator, own in zip(self._torch, state.torch, strict=True):
            generator.set_state(own)
        np.random.set_state(state.numpy)
        random.setstate(state.python)

    def drawn_from(self, before: GeneratorState) -> str | None:
        """Return whose generator was drawn from since then; None: nobody's."""
        now = self.state()
        if not all(torch.equal(own, old) for own, old in zip(now.torch, before.torch, strict=True)):
            return "torch"
        if now.numpy[2] != before.numpy[2] or not np.array_equal(now.numpy[1], before.numpy[1]):
            return "numpy"
        return "Python" if now.python != before.python else None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put all generators back afterwards."""
        before = self.state()
        try:
            yield
        finally:
            self.restore(before)


@contextmanager
def reproducible(device: torch.device = CPU) -> Iterator[None]:
    """One thread for each operation, so that bits do not depend on the machine's cores; generators are put back."""
    threads, fixed = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    try:
        with Generators(device).kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = fixed
