"""What a round costs, written into the ledger from what was really sent and computed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.costs.counted import gradient_flops
from fedgbo.costs.flops import forward_macs, local_update_flops
from fedgbo.costs.probe import Probe, probe
from fedgbo.engines.engine import Engine
from fedgbo.engines.serial import CohortResult
from fedgbo.runs.record import Ledger


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
        paper = local_update_flops(result.samples, sum(steps), self.macs, self.params, algorithm.step_ops)
        operations = sum(clients * asked(algorithm, k).operations for k, clients in _counted(tuple(steps)))
        return replace(
            ledger,
            round=ledger.round + 1,
            download_bytes=ledger.download_bytes + result.download_bytes,
            upload_bytes=ledger.upload_bytes + result.upload_bytes,
            flops=ledger.flops + paper,
            seconds=ledger.seconds + seconds,
            counted_flops=ledger.counted_flops + result.samples * self.gradient_flops + operations * self.params,
            loss_sum=ledger.loss_sum + result.loss,
            loss_rounds=ledger.loss_rounds + 1,
        )


@lru_cache(maxsize=64)
def _counted(steps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return every number of local steps, and how many clients take it: in most runs the same in each round."""
    return list(Counter(steps).items())


@lru_cache(maxsize=64)
def _asked(algorithm: FederatedAlgorithm, steps: int) -> Probe:
    return probe(algorithm, steps)


def asked(algorithm: FederatedAlgorithm, steps: int) -> Probe:
    """Return what the algorithm asks of a client that takes so many steps; the same question is answered once."""
    try:
        return _asked(algorithm, steps)
    except TypeError:  # an algorithm of the user's own, or one with a list in it, that cannot be a key
        return probe(algorithm, steps)
