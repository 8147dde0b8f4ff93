"""The random generators that a user's code may draw from: torch's, numpy's and Python's, which are process-wide.

Our own code draws from named streams only. A model, a data set or a `client_update` may draw from these generators all
the same, as dropout does. Where one does, clients are trained one at a time, each with generators seeded for the client
and the round, so that a result depends neither on the order of the clients nor on the number of workers. A model that
draws with torch's operations alone can draw the same numbers from a generator of its own, so that threads share none.
"""

import ctypes
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedgbo.core import torch_seed
from fedgbo.engines.device import CPU, generator_of

MT19937_BYTES = 4 * 624 + 4  # the generator's words and its place in them


@dataclass(frozen=True, eq=False)
class GeneratorState:
    """The states of all generators at one moment."""

    torch: tuple[Tensor, ...]
    numpy: Any = None
    python: Any = None


class Generators:
    """torch's generators for the CPU and a device, numpy's global generator and Python's."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._torch = [torch.default_generator] + ([] if device.type == "cpu" else [generator_of(device)])

    def seed(self, seed: int, purpose: str, *key: int) -> None:
        """Seed all generators from the stream of that name."""
        self.start(torch_seed(seed, purpose, *key))

    def start(self, number: int) -> None:
        """Seed all generators with a number of 64 bits."""
        for generator in self._torch:
            generator.manual_seed(number)
        np.random.seed(number % 2**32)
        random.seed(number)

    def state(self) -> GeneratorState:
        """Return the states, to be restored."""
        drawn = tuple(generator.get_state() for generator in self._torch)
        return GeneratorState(drawn, np.random.get_state(), random.getstate())

    def restore(self, state: GeneratorState) -> None:
        """Put all generators back into an earlier state."""
        for generator, own in zip(self._torch, state.torch, strict=True):
            generator.set_state(own)
        np.random.set_state(state.numpy)
        random.setstate(state.python)

    def marks(self, python: bool = True) -> dict[str, Any]:
        """Return what every draw changes, by whose generator it is; Python's if asked for.

        numpy takes 0.1 ms to return a state, so that of its usual generator is read from memory.
        """
        bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
        usual = isinstance(bits, np.random.MT19937)
        return {
            "torch": [generator.get_state().numpy().tobytes() for generator in self._torch],
            "numpy": ctypes.string_at(bits.ctypes.state_address, MT19937_BYTES) if usual else repr(bits.state),
            **({"Python": random.getstate()} if python else {}),
        }

    def drawn_from(self, before: Mapping[str, Any]) -> str | None:
        """Return whose generator was drawn from since it had these marks; None: nobody's."""
        now = self.marks(python="Python" in before)
        return next((whose for whose, mark in now.items() if mark != before[whose]), None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put all generators back afterwards."""
        before = self.state()
        try:
            yield
        finally:
            self.restore(before)


class OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, this thread's random operations of torch draw from a generator of its own, on the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator()

    def seed(self, seed: int, purpose: str, *key: int) -> None:
        """Seed it from the stream of that name, as `Generators` does with torch's."""
        self._generator.manual_seed(torch_seed(seed, purpose, *key))

    def state(self) -> GeneratorState:
        """Return the state, to be restored."""
        return GeneratorState((self._generator.get_state(),))

    def restore(self, state: GeneratorState) -> None:
        """Put the generator back into an earlier state."""
        self._generator.set_state(state.torch[0])

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        own, kwargs = _taking_generator(func), kwargs or {}
        if own is None or kwargs.get("generator") is not None:  # the user's own generator stays
            return func(*args, **kwargs)
        return own(*args, **{**kwargs, "generator": self._generator})


@cache
def _taking_generator(func: Any) -> Any:
    """Return the variant of a random operation that takes a generator; None if it is not random, or has none."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    names = [argument.name for argument in func._schema.arguments if argument.name != "generator"]
    for other in (func, *(getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads())):
        theirs = [argument.name for argument in other._schema.arguments]
        if "generator" in theirs and [name for name in theirs if name != "generator"] == names:
            return other
    return None


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
