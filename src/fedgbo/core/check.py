"""Checks that the formulas of an optimiser or an algorithm are consistent, for classes that users write."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm, Part
from fedgbo.core.client import Client
from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term, ruled
from fedgbo.core.optimiser import AffineOptimiser, Optimiser, Stats
from fedgbo.core.pipeline import Mean
from fedgbo.core.random import stream
from fedgbo.core.schedule import at_round
from fedgbo.core.state import State

LENGTH = 7  # of the model that algorithms are tried on
TOLERANCE = 1e-8  # of the numbers that are compared, in float64
STEPS = (1, 2, 5)  # K of the clients


def check(thing: Optimiser | FederatedAlgorithm, params: Tensor | None = None) -> str:
    """Test the formulas of an optimiser or an algorithm; raise ConfigError with the first counterexample.

    For an optimiser, the test verifies that `init`, `affine` and `track` return vectors of the right length, that
    `update` agrees with `affine`, that the inverse step recovers the mean gradient of simulated local steps, and that
    no function changes its arguments. For an algorithm, it runs three rounds on a small quadratic problem with three
    clients and verifies that uploads and states have the right shapes and depend only on their arguments; it also tests
    the algorithm's optimisers. Schedules have the value of the first round.

    Optimisers are checked with vectors like `params`, by default of 7 numbers. `fedgbo.run` checks your own optimisers
    with the model's parameters.

    >>> from fedgbo import SGDm
    >>> check(SGDm(lr=0.1, beta=0.9))
    'SGDm: the formulas are consistent (shapes, purity, update, inverse for K = 1, 2, 5)'
    """
    now: Any = at_round(thing, 0)
    start = torch.linspace(-1, 1, LENGTH, dtype=torch.float64) if params is None else params.double()
    if isinstance(now, Optimiser):
        _check_optimiser(now, start)
        inverse = f", inverse for K = {', '.join(map(str, STEPS))}" if isinstance(now, AffineOptimiser) else ""
        return f"{type(now).__name__}: the formulas are consistent (shapes, purity, update{inverse})"
    if isinstance(now, FederatedAlgorithm):
        for optimiser in optimisers_of(now):
            _check_optimiser(optimiser, start)
        _check_algorithm(now)
        return f"{type(now).__name__}: the formulas are consistent (shapes, purity, three rounds with three clients)"
    raise ConfigError(f"check takes an optimiser or an algorithm, not {thing!r}")


def optimisers_of(algorithm: FederatedAlgorithm) -> list[Optimiser]:
    """Return the optimisers among an algorithm's settings, and those of an algorithm that it wraps."""
    settings = list(vars(algorithm).values())
    inner = [one for value in settings if isinstance(value, FederatedAlgorithm) for one in optimisers_of(value)]
    return [value for value in settings if isinstance(value, Optimiser)] + inner


def _check_optimiser(optimiser: Optimiser, params: Tensor) -> None:
    name, rng, length = type(optimiser).__name__, torch.Generator().manual_seed(0), len(params)
    draw: Callable[[], Tensor] = lambda: torch.randn(length, generator=rng, dtype=torch.float64)  # noqa: E731
    stats = _pure(f"{name}.init", optimiser.init, params)
    _check_stats(f"{name}.init", stats, length)
    for _ in range(3):  # statistics as they may be in the middle of a run
        tracked = _pure(f"{name}.track", optimiser.track, stats, draw())
        _check_stats(f"{name}.track", tracked, length)
        if tracked.keys() != stats.keys():
            raise ConfigError(f"{name}.track returns {sorted(tracked)}, but init returns {sorted(stats)}")
        stats = tracked
    anchored = _pure(f"{name}.anchor", optimiser.anchor, stats, params)
    _check_stats(f"{name}.anchor", anchored, length)
    if isinstance(optimiser, AffineOptimiser):
        _check_affine(optimiser, params, anchored, draw)
    grad = draw()
    updated = _pure(f"{name}.update", optimiser.update, params, stats, grad)
    _check_vector(f"{name}.update", updated, length)
    stepped = _pure(f"{name}.step", optimiser.step, params, stats, grad)
    if not isinstance(stepped, tuple) or len(stepped) != 2:
        raise ConfigError(f"{name}.step must return the parameters and the statistics, not {type(stepped).__name__}")
    _check_vector(f"{name}.step", stepped[0], length)


def _check_affine(optimiser: AffineOptimiser, params: Tensor, stats: Stats, draw: Callable[[], Tensor]) -> None:
    name, length = type(optimiser).__name__, len(params)
    parts = _pure(f"{name}.affine", optimiser.affine, stats)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise ConfigError(f"{name}.affine must return the pair (a, b), not {type(parts).__name__}")
    for what, part in zip("ab", parts, strict=True):
        if not isinstance(part, Tensor | Real):
            raise ConfigError(f"{name}.affine's {what} must be a vector or a number, not {type(part).__name__}")
        if isinstance(part, Tensor) and part.ndim:
            _check_vector(f"{name}.affine's {what}", part, length)
        if not bool(torch.isfinite(torch.as_tensor(part)).all()):
            raise ConfigError(f"{name}.affine's {what} is not finite: {part}")
    if not bool((torch.as_tensor(parts[1]) > 0).all()):
        raise ConfigError(f"{name}.affine's b must be above 0, because an optimiser descends: {parts[1]}")
    grad = draw()
    _check_equal(
        f"{name}.update does not agree with affine, y - (a + b g)",
        optimiser.update(params, stats, grad),
        optimiser.fixed(stats)(params, grad),
    )
    for steps in STEPS:
        y, grads = torch.zeros_like(params), [draw() for _ in range(steps)]  # from 0, so that no digit is lost
        for g in grads:
            y = optimiser.update(y, stats, g)
        _check_equal(
            f"{name}.invert does not recover the mean gradient of K = {steps} updates",
            optimiser.invert(stats, -y, steps),
            torch.stack(grads).mean(dim=0),
        )


def _check_algorithm(algorithm: FederatedAlgorithm) -> None:
    name = type(algorithm).__name__
    server = _pure(f"{name}.init", algorithm.init, torch.linspace(-1, 1, LENGTH, dtype=torch.float64))
    _check_state(f"{name}.init", server)
    states = {c: _pure(f"{name}.client_state", algorithm.client_state, server.params) for c in range(len(STEPS))}
    for t in range(3):
        seen, states = _exchange(algorithm, server, t, states)
        version, second = server, _pure(f"{name}.second_exchange", algorithm.second_exchange, server, seen)
        if second is not None:
            _check_state(f"{name}.second_exchange", second)
            version, (seen, states) = second, _exchange(algorithm, second, t, states)
        merged = algorithm.merge([Part(algorithm, seen, sum(STEPS) / len(STEPS), len(STEPS), version)])
        after = _pure(f"{name}.server_update", algorithm.server_update, server, *merged)
        _check_state(f"{name}.server_update", after)
        if after.stats.keys() != server.stats.keys():
            raise ConfigError(
                f"{name}.server_update returns the statistics {sorted(after.stats)}, but init {sorted(server.stats)}"
            )
        server = after


def _exchange(
    algorithm: FederatedAlgorithm, server: State, t: int, states: Mapping[int, Stats]
) -> tuple[Mean, dict[int, Stats]]:
    """Run a client update for every client; return the mean of the uploads and the clients' states."""
    name, uploads, kept = type(algorithm).__name__, list[dict[str, Tensor]](), dict[int, Stats]()
    down = _pure(f"{name}.broadcast", algorithm.broadcast, server)
    for c, k in enumerate(STEPS):
        up, kept[c] = _client_update(algorithm, down, c, t, k, states[c])
        uploads.append(up.tensors())
        if uploads[-1].keys() != uploads[0].keys():
            raise ConfigError(f"{name}.client_update uploads {list(uploads[-1])} and {list(uploads[0])}")
    mean = State.of_tensors({n: torch.stack([up[n] for up in uploads]).mean(dim=0) for n in uploads[0]})
    return Mean(mean.params, mean.stats, len(STEPS), len(STEPS) + 1), kept


def _client_update(
    algorithm: FederatedAlgorithm, down: State, client: int, t: int, steps: int, state: Stats
) -> tuple[State, Stats]:
    """Run a client update twice; return its upload and the client's state if both times they are the same."""
    name = f"{type(algorithm).__name__}.client_update"
    one, other = (QuadraticClient(client, t, steps, state, algorithm.terms) for _ in range(2))
    up = _pure(name, lambda d: algorithm.client_update(d, one), down)
    again = algorithm.client_update(down, other)
    _check_state(name, up)
    for vector, second in zip(up.tensors().values(), again.tensors().values(), strict=True):
        _check_equal(f"{name} gives another upload for the same client, round and model", second, vector)
    declared = algorithm.client_state(down.params)
    if one.state.keys() != declared.keys():
        raise ConfigError(
            f"{name} leaves {sorted(one.state)} in client.state; client_state declares {sorted(declared)}"
        )
    return up, one.state


def _pure(name: str, formula: Callable[..., Any], *arguments: Any) -> Any:
    """Call a formula; raise if it changes its arguments."""
    before = [_vectors(argument) for argument in arguments]
    copies = [[vector.clone() for vector in vectors] for vectors in before]
    result = formula(*arguments)
    for vectors, kept in zip(before, copies, strict=True):
        if any(not torch.equal(vector, copy) for vector, copy in zip(vectors, kept, strict=True)):
            raise ConfigError(f"{name} writes into its arguments; formulas must return new vectors")
    return result


def _vectors(argument: Any) -> list[Tensor]:
    if isinstance(argument, Tensor):
        return [argument]
    if isinstance(argument, Mapping):
        return list(argument.values())
    return [argument.params, *argument.stats.values()] if isinstance(argument, State | Mean) else []


def _check_state(name: str, state: Any) -> None:
    if not isinstance(state, State):
        raise ConfigError(f"{name} must return a State, not {type(state).__name__}")
    _check_vector(f"{name}'s params", state.params, LENGTH)
    for stat, vector in state.stats.items():
        _check_vector(f"{name}'s {stat}", vector)


def _check_stats(name: str, stats: Any, length: int) -> None:
    if not isinstance(stats, Mapping):
        raise ConfigError(f"{name} must return a dict of vectors by name, not {type(stats).__name__}")
    for stat, vector in stats.items():
        single = isinstance(vector, Tensor) and vector.shape == (1,)
        _check_vector(f"{name}'s {stat}", vector, 1 if single else length)


def _check_vector(name: str, vector: Any, length: int | None = None) -> None:
    if not isinstance(vector, Tensor) or vector.ndim != 1 or (length is not None and len(vector) != length):
        shape = tuple(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
        raise ConfigError(f"{name} must be a vector as long as the model ({length or LENGTH} here), not {shape}")
    if not bool(torch.isfinite(vector).all()):
        raise ConfigError(f"{name} is not finite on a problem of ordinary numbers: {vector[:9].tolist()}")


def _check_equal(problem: str, found: Tensor, wanted: Tensor) -> None:
    """Raise with the first number that differs."""
    _check_vector(problem, found, len(wanted))
    error = (found - wanted).abs() > TOLERANCE * (1 + wanted.abs() + found.abs())
    if bool(error.any()):
        at = int(error.nonzero()[0])
        raise ConfigError(f"{problem}: at parameter {at} it gives {found[at]:.6g} instead of {wanted[at]:.6g}")


class QuadraticClient(Client):
    """A client without a model, whose loss is ½ ‖y - b‖², with noise in its minibatches.

    Of the terms only gradient rules are applied. It counts the gradients and losses that it computes.
    """

    def __init__(
        self, client: int, t: int, steps: int, state: Stats, terms: Sequence[Term] = (), length: int = LENGTH
    ) -> None:
        self.id, self.samples, self.steps, self.state = client, 10 * (client + 1), steps, dict(state)
        self.minibatches = self.full_batches = self.losses = 0  # gradients and losses so far
        self._terms = terms
        self._rng, self._noise = stream(0, "client", t, client), stream(0, "noise", t, client)
        self._minimum = torch.from_numpy(stream(0, "minimum", client).normal(size=length))
        self._last = torch.zeros(length, dtype=torch.float64)

    @property
    def rng(self) -> np.random.Generator:
        return self._rng

    def gradient(self, params: Tensor, *, again: bool = False) -> Tensor:
        return ruled(self._gradient, self._terms)(params, again)

    def full_gradient(self, params: Tensor) -> Tensor:
        return ruled(self._full_gradient, self._terms)(params, False)

    def loss(self, params: Tensor) -> float:
        self.losses += 1
        return float((params - self._minimum).square().sum() / 2)

    def _gradient(self, params: Tensor, again: bool) -> Tensor:
        self.minibatches += 1
        if not again:
            self._last = torch.from_numpy(self._noise.normal(size=len(self._last)))
        return params - self._minimum + self._last

    def _full_gradient(self, params: Tensor, again: bool) -> Tensor:
        self.full_batches += 1
        return params - self._minimum
