"""The server's step, as quick as the algorithm lets it be."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

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


def server_step(
    algorithm: FederatedAlgorithm, server: State, result: CohortResult, t: int, *, lasting: bool = False
) -> State:
    """Return the server's state after round t, computed in float64 and rounded to the type of its model.

    Where every number stands for itself, long vectors are gone through in pieces that stay in the processor's cache
    with all that is computed on the way. `lasting` says that the algorithm will be the same in the next rounds: then it
    is worth looking into for short vectors too.
    """
    if server.params.numel() >= 2 * PIECE and server.params.is_cpu and is_elementwise(algorithm):
        after, finite = _in_pieces(algorithm, server, result)
    else:
        after, finite = (_step if lasting else _plain_step)(algorithm, server, result.mean, result.steps)
    if not finite and (name := after.not_finite()) is not None:
        raise DivergenceError(f"{name} is no longer finite after round {t + 1}")
    return after


def _in_pieces(algorithm: FederatedAlgorithm, server: State, result: CohortResult) -> tuple[State, bool]:
    """Take the step piece by piece, by two threads."""
    length = server.params.numel()

    def piece(begin: int, end: int) -> tuple[State, bool]:
        return _step(algorithm, server.part(begin, end), result.sent.part(begin, end), result.steps)

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


def _step(algorithm: FederatedAlgorithm, server: State, mean: State, steps: float) -> tuple[State, bool]:
    """Return the next state, and whether its numbers were seen to be finite."""
    return _added_up(algorithm, server, mean, steps) or _plain_step(algorithm, server, mean, steps)


def _plain_step(algorithm: FederatedAlgorithm, server: State, mean: State, steps: float) -> tuple[State, bool]:
    return algorithm.server_update(server.to(torch.float64), mean, steps).to(server.params.dtype), False


def _added_up(algorithm: FederatedAlgorithm, server: State, mean: State, steps: float) -> tuple[State, bool] | None:
    """Where the step comes down to sums of multiples of vectors, take it in one pass of a C loop; None if it does not.

    The same pass rounds, and looks for numbers that are not finite.
    """
    kind, length = server.params.dtype, server.params.numel()
    if length < WORTH_LOADING or kind not in KINDS or (native := library()) is None:
        return None
    own, means = [server.params, *server.stats.values()], [mean.params, *mean.stats.values()]
    if not _readable(own, kind, length) or not _readable(means, torch.float64, length):
        return None
    sums = _sums(algorithm, tuple(server.stats), tuple(mean.stats), steps)
    if sums is None:
        return None
    made = [torch.empty_like(server.params) for _ in range(1 + len(sums.stats))]
    vectors = [*own, *means, *made]
    addresses = (ctypes.c_void_p * len(vectors))(*[x.data_ptr() for x in vectors])
    combine = getattr(native, f"fedgbo_combine_{KINDS[kind]}")
    finite = combine(length, len(made), len(own), len(own) + len(means), sums.factors.data_ptr(), addresses)
    return State(made[0], dict(zip(sums.stats, made[1:], strict=True))), finite


def _sums(
    algorithm: FederatedAlgorithm, stats: tuple[str, ...], mean_stats: tuple[str, ...], steps: float
) -> Linear | None:
    """Return what `linear` finds, and look only once while it is the same object that is asked for."""
    global _last
    names, last = (stats, mean_stats, steps), _last  # taken once: other threads may ask for others
    if last is None or last[0] is not algorithm or last[1] != names:
        last = _last = (algorithm, names, linear(algorithm, *names))
    return last[2]


_last: tuple[FederatedAlgorithm, tuple[tuple[str, ...], tuple[str, ...], float], Linear | None] | None = None


def _readable(vectors: list[Tensor], kind: torch.dtype, length: int) -> bool:
    """Return whether C may read these as arrays of one type and length."""
    return all(x.dtype == kind and x.numel() == length and x.is_cpu and x.is_contiguous() for x in vectors)
