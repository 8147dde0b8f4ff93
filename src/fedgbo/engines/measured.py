"""An engine that measures how clients drift while they train, and changes nothing of what they send up."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import DivergenceError
from fedgbo.core.objective import Term
from fedgbo.core.state import State
from fedgbo.engines.device import generator_of
from fedgbo.engines.drift import ClientSteps, CohortDrift
from fedgbo.engines.engine import Engine
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.halves import Backward, Batch, in_turn, whole
from fedgbo.engines.serial import ClientResult, CohortResult, SerialEngine, SimulatedClient, Work, gather


class MeasuredEngine:
    """The plain engine, with an eye on every client.

    Where another engine makes the run's result (the sparse one, which rounds in another way and sends one mean), the
    plain engine goes through the round once more beside it: the result is the one that it would be unmeasured.
    """

    def __init__(
        self, plain: SerialEngine, algorithm: FederatedAlgorithm, *, gradients: bool, other: Engine | None = None
    ) -> None:
        self.plain, self.other = plain, other
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.initial_params, self.sample = plain.initial_params, plain.sample
        self._twin: FlatModel | None = None  # for gradients at x_t
        if gradients:
            self._twin = FlatModel(plain.build_model(), plain.task.loss)
            self._twin.specialise(plain.sample[0], algorithm.terms)

    def train(
        self,
        algorithm: FederatedAlgorithm,
        down: State,
        cohort: Sequence[int],
        steps: Sequence[int],
        t: int,
        odd: int | None = None,
    ) -> CohortResult:
        """Run round t's client updates; the result has `drift`, too."""
        drift = CohortDrift(down.params)
        work = Work(algorithm, down, t, odd if self.plain.splits else None)
        order = sorted(zip(cohort, steps, strict=True))
        result = gather((self._client(drift, work, c, k) for c, k in order), down, steps)
        measured = drift.value(steps)
        if (name := next((name for name, value in measured.items() if not math.isfinite(value)), None)) is not None:
            raise DivergenceError(f"the drift's {name} is {measured[name]} in round {t + 1}")
        if self.other is not None:
            result = self.other.train(algorithm, down, cohort, steps, t, odd)
        return replace(result, drift=measured)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        return (self.other or self.plain).evaluate(params)

    def _client(self, drift: CohortDrift, work: Work, client: int, steps: int) -> ClientResult:
        if self._twin is None:
            result = self.plain.train_client(self.plain.model, work, client, steps)
            drift.add(result.up.params, None)
            return result
        backward = in_turn if client == work.odd else whole
        seen = ClientSteps(work.down.params)
        watched = WatchedClient(self.plain, work, client, steps, backward, self._twin, seen)
        up = work.algorithm.client_update(work.down, watched)
        drift.add(up.params, seen if seen.gradients else None)  # an algorithm of the user's own may ask for none
        return ClientResult(up, watched.mean_loss(), watched.samples)


class WatchedClient(SimulatedClient):
    """A client that takes the gradient of each of its minibatches at x_t too, on a model kept for that: the same
    samples, augmented in the same way, with the same units dropped out.
    """

    def __init__(
        self,
        engine: SerialEngine,
        work: Work,
        client: int,
        steps: int,
        backward: Backward,
        twin: FlatModel,
        seen: ClientSteps,
    ) -> None:
        super().__init__(engine, engine.model, work, client, steps, self._watched)
        self._unwatched, self._twin, self._seen = backward, twin, seen

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all samples: no local step, and so not part of equation (2)."""
        self._backward = self._unwatched
        try:
            return super().full_gradient(params)
        finally:
            self._backward = self._watched

    def _watched(self, model: FlatModel, batch: Batch, terms: Sequence[Term]) -> Tensor:
        generator = generator_of(self._engine.device)
        dropout = generator.get_state()
        reference = self._twin.gradient(self._start, batch, terms)[0]
        generator.set_state(dropout)
        loss = self._unwatched(model, batch, terms)
        grad = self._pulled(model.params, model.flat_gradient())
        self._seen.add(model.params, grad, self._pulled(self._start, reference))
        return loss
