"""The server's step, as quick as the algorithm lets it be."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.elementwise import is_elementwise
from fedgbo.core.errors import DivergenceError
from fedgbo.core.linear import Linear, linear
from fedgbo.core.state import State
from fedgbo.engines.layers.native import library
from fedgbo.engines.mean import KINDS, WORTH_LOADING
from fedgbo.engines.serial import CohortResult

PIECE = 131_072  # numbers of each vector that the server works on at a time
TakesStep = Callable[[FederatedAlgorithm, State, State, float], tuple[State, bool]]  # as `_plain_step`
BRIEF = 32  # numbers that tell the factors of a formula that is known to be linear


def server_step(
    algorithm: FederatedAlgorithm, server: State, result: CohortResult, t: int, *, lasting: bool = False
) -> State:
    """Return the server's state after round t, computed in float64 and rounded to the type of its model.

    Where every number stands for itself, long vectors are gone through in pieces that stay in the processor's cache
    with all that is computed on the way. `lasting` says that the algorithm will be the same in the next rounds, so that
    it is worth looking into.
    """
    step = _quick_step if lasting else _plain_step
    if server.params.numel() >= 2 * PIECE and server.params.is_cpu and is_elementwise(algorithm):
        after, finite = _in_pieces(step, algorithm, server, result)
    else:
        after, finite = step(algorithm, server, result.mean, result.steps)
    if not finite and (name := after.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    return after


def _in_pieces(
    step: TakesStep, algorithm: FederatedAlgorithm, server: State, result: CohortResult
) -> tuple[State, bool]:
    """Take the step piece by piece, by two threads."""
    length = server.params.numel()

    def piece(begin: int, end: int) -> tuple[State, bool]:
        return step(algorithm, server.part(begin, end), result.sent.part(begin, end), result.steps)

    first, finite = piece(0, PIECE)
    whole = {name: torch.empty_like(server.params) for name in first.tensors()}
    for name, numbers in first.tensors().items():
        whole[name][:PIECE] = numbers
    pieces = iter([(begin, min(begin + PIECE, length)) for begin in range(PIECE, length, PIECE)])

    def work() -> bool:
        all_finite = True
        for begin, end in pieces:  # each goes to one thread
            after, finite = piece(begin, end)
            for name, numbers in after.tensors().items():
                whole[name][begin:end] = numbers
            all_finite = all_finite and finite
        return all_finite

    with ThreadPoolExecutor(1, "fedgbo-server") as other:
        helping = other.submit(work)
        finite = work() and finite
    return State.of_tensors(whole), helping.result() and finite


def _plain_step(algorithm: FederatedAlgorithm, server: State, mean: State, steps: float) -> tuple[State, bool]:
    """Return the next state, and that its numbers were not seen to be finite."""
    return algorithm.server_update(server.to(torch.float64), mean, steps).to(server.params.dtype), False


def _quick_step(algorithm: FederatedAlgorithm, server: State, mean: State, steps: float) -> tuple[State, bool]:
    """Where the step comes down to sums of multiples of vectors, take it in one pass of a C loop.

    The same pass rounds, and looks for numbers that are not finite. If it finds some, the formula has the last word.
    """
    kind, length = server.params.dtype, server.params.numel()
    own, means = [server.params, *server.stats.values()], [mean.params, *mean.stats.values()]
    native = library() if length >= WORTH_LOADING and kind in KINDS else None
    if native is None or not _readable(own, kind, length) or not _readable(means, torch.float64, length):
        return _plain_step(algorithm, server, mean, steps)
    sums = _sums(algorithm, (tuple(server.stats), tuple(mean.stats)), steps, length)
    if sums is None:
        return _plain_step(algorithm, server, mean, steps)
    made = [torch.empty_like(server.params) for _ in range(1 + len(sums.stats))]
    vectors = [*own, *means, *made]
    addresses = (ctypes.c_void_p * len(vectors))(*[x.data_ptr() for x in vectors])
    combine = getattr(native, f"fedgbo_combine_{KINDS[kind]}")
    if not combine(length, len(made), len(own), len(own) + len(means), sums.factors.data_ptr(), addresses):
        return _plain_step(algorithm, server, mean, steps)
    return State(made[0], dict(zip(sums.stats, made[1:], strict=True))), True


def _readable(vectors: list[Tensor], kind: torch.dtype, length: int) -> bool:
    """Return whether C may read these as arrays of one type and length."""
    return all(x.dtype == kind and x.numel() == length and x.is_cpu and x.is_contiguous() for x in vectors)


class _Looked(NamedTuple):
    """What was found when an algorithm was last looked into."""

    algorithm: FederatedAlgorithm
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of the statistics of server and mean
    is_linear: bool
    steps: float
    sums: Linear | None


_last: _Looked | None = None


def _sums(
    algorithm: FederatedAlgorithm, names: tuple[tuple[str, ...], tuple[str, ...]], steps: float, length: int
) -> Linear | None:
    """Return what `linear` finds. An algorithm is looked into closely once, and for another number of steps briefly."""
    global _last
    last = _last  # taken once: other threads may ask for other algorithms
    if last is None or last.algorithm is not algorithm or last.names != names:
        sums = linear(algorithm, *names, steps, length)
        last = _last = _Looked(algorithm, names, sums is not None, steps, sums)
    elif last.is_linear and last.steps != steps:
        last = _last = last._replace(steps=steps, sums=linear(algorithm, *names, steps, BRIEF))
    return last.sums
