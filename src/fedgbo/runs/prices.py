"""What a round costs, written into the ledger from what was really sent and computed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.costs.counted import gradient_flops
from fedgbo.costs.flops import forward_macs, local_update_flops
from fedgbo.costs.probe import Probe, probe
from fedgbo.engines.engine import Engine
from fedgbo.engines.serial import CohortResult
from fedgbo.runs.record import Ledger

K = TypeVar("K", int, tuple[int, ...])
T = TypeVar("T")


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

    def booked(
        self,
        ledger: Ledger,
        algorithm: FederatedAlgorithm,
        result: CohortResult,
        steps: Sequence[int],
        seconds: float,
    ) -> Ledger:
        """Return the ledger with one more round in it, which took so many seconds.

        The algorithm is the run's own, schedules and all: what it asks does not depend on their values, and so it is
        asked once and not every round.
        """
        total, step_ops, operations = _once(_work, algorithm, tuple(steps))
        paper = local_update_flops(result.samples, total, self.macs, self.params, step_ops)
        return Ledger(  # and not `replace`, which takes longer than all the rest
            round=ledger.round + 1,
            download_bytes=ledger.download_bytes + result.download_bytes,
            upload_bytes=ledger.upload_bytes + result.upload_bytes,
            flops=ledger.flops + paper,
            counted_flops=ledger.counted_flops + result.samples * self.gradient_flops + operations * self.params,
            seconds=ledger.seconds + seconds,
            loss_sum=ledger.loss_sum + result.loss,
            loss_rounds=ledger.loss_rounds + 1,
            drift_sum=ledger.drift_sum,
            drift_rounds=ledger.drift_rounds,
        )


def asked(algorithm: FederatedAlgorithm, steps: int) -> Probe:
    """Return what the algorithm asks of a client that takes so many steps."""
    return _once(probe, algorithm, steps)


def _work(algorithm: FederatedAlgorithm, steps: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the clients' local steps together, and the algorithm's operations per parameter: in one step as the paper
    counts them, and in all steps as they are executed.
    """
    operations = sum(clients * asked(algorithm, k).operations for k, clients in Counter(steps).items())
    return sum(steps), algorithm.step_ops, operations


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
