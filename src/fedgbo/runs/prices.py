"""What a round costs, written into the ledger from what was really sent and computed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.costs.counted import gradient_flops
from fedgbo.costs.flops import forward_macs, local_update_flops
from fedgbo.costs.probe import Probe, probe
from fedgbo.engines.ahead import Played
from fedgbo.engines.engine import Engine
from fedgbo.engines.serial import CohortResult
from fedgbo.runs.record import Ledger

K = TypeVar("K", int, tuple[int, ...])
T = TypeVar("T")


class Work(NamedTuple):
    """What the clients of a round do beside gradients."""

    steps: int  # of all of them together
    step_ops: int  # operations per parameter in one step, as the paper counts them
    operations: int  # per parameter in all steps, as they are executed


@dataclass(frozen=True)
class Prices:
    """What one sample and one parameter of a model cost."""

    params: int  # |x|
    macs: int  # F, the multiply-adds of one sample going forward
    gradient_flops: float  # of one sample, as torch counts them

    @classmethod
    def of(cls, engine: Engine) -> "Prices":
        """Run two samples through the engine's model and count."""
        module, (inputs, targets) = engine.model.original, engine.sample  # the layers that torch knows to count
        return cls(
            params=engine.model.params.numel(),
            macs=forward_macs(module, inputs),
            gradient_flops=gradient_flops(module, engine.task.loss, inputs, targets),
        )

    def booked(self, ledger: Ledger, work: Work, result: CohortResult | Played, seconds: float) -> Ledger:
        """Return the ledger with one more round in it, which took so many seconds."""
        paper = local_update_flops(result.samples, work.steps, self.macs, self.params, work.step_ops)
        counted = result.samples * self.gradient_flops + work.operations * self.params
        return Ledger(
            round=ledger.round + 1,
            download_bytes=ledger.download_bytes + result.download_bytes,
            upload_bytes=ledger.upload_bytes + result.upload_bytes,
            flops=ledger.flops + paper,
            counted_flops=ledger.counted_flops + counted,
            seconds=ledger.seconds + seconds,
            loss_sum=ledger.loss_sum + result.loss,
            loss_rounds=ledger.loss_rounds + 1,
            drift_sum=ledger.drift_sum,
            drift_rounds=ledger.drift_rounds,
        )


def work_of(algorithm: FederatedAlgorithm, steps: Sequence[int]) -> Work:
    """Return what clients do that take so many steps.

    The algorithm is the run's own, schedules and all: what it asks does not depend on their values, and so it is asked
    once and not every round.
    """
    return _once(_work, algorithm, tuple(steps))


def asked(algorithm: FederatedAlgorithm, steps: int) -> Probe:
    """Return what the algorithm asks of a client that takes so many steps."""
    return _once(probe, algorithm, steps)


def _work(algorithm: FederatedAlgorithm, steps: tuple[int, ...]) -> Work:
    operations = sum(clients * asked(algorithm, k).operations for k, clients in Counter(steps).items())
    return Work(sum(steps), algorithm.step_ops, operations)


def _once(question: Callable[[FederatedAlgorithm, K], T], algorithm: FederatedAlgorithm, steps: K) -> T:
    """Answer a question about an algorithm; the same one, as a run asks it every round, once."""
    try:
        answer: T = _answered(question, algorithm, steps)
    except TypeError:  # an algorithm of the user's own, or one with a list in it, that cannot be a key
        answer = question(algorithm, steps)
    return answer


@lru_cache(maxsize=128)
def _answered(question: Callable[[FederatedAlgorithm, Any], Any], algorithm: FederatedAlgorithm, steps: Any) -> Any:
    return question(algorithm, steps)
