"""What rounds cost, from what was really sent and computed."""

from dataclasses import dataclass

from fedgbo.costs.flops import ModelCost
from fedgbo.engines.engine import Engine, Gathered
from fedgbo.runs.record import Ledger


@dataclass(frozen=True)
class Accounts:
    """What one sample and one parameter of a model cost."""

    params: int  # |x|
    cost: ModelCost

    @classmethod
    def of(cls, engine: Engine) -> "Accounts":
        """Count on a copy of the engine's model."""
        return cls(
            engine.model.params.numel(), ModelCost.of(engine.model.original, engine.model.loss_of, *engine.sample)
        )

    def booked(self, ledger: Ledger, gathered: Gathered, seconds: float) -> Ledger:
        """Return the ledger with one more round, which took so many seconds."""
        macs, counted = self.cost.macs, self.cost.gradient_flops
        return ledger.with_drift(gathered.drift)._replace(
            round=ledger.round + 1,
            download_bytes=ledger.download_bytes + gathered.download_bytes,
            upload_bytes=ledger.upload_bytes + gathered.upload_bytes,
            flops=self._added(ledger.flops, gathered, None if macs is None else 3 * macs),
            counted_flops=self._added(ledger.counted_flops, gathered, counted),
            seconds=ledger.seconds + seconds,
            loss_sum=ledger.loss_sum + gathered.loss,
            loss_rounds=ledger.loss_rounds + 1,
        )

    def _added(self, total: float | None, gathered: Gathered, per_gradient: float | None) -> float | None:
        """Add N of Appendix B: gradients of one sample each, and the updates of all parameters."""
        if total is None or per_gradient is None or gathered.operations is None:
            return None
        return total + gathered.gradients * per_gradient + gathered.operations * self.params

    def note(self, ledger: Ledger) -> str | None:
        """Say why FLOPs are missing, where they are."""
        if ledger.flops is not None:
            return None
        return self.cost.note or "FLOPs could not be counted for this algorithm"
