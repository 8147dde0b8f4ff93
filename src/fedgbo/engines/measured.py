"""An engine that measures how clients drift while they train, and changes nothing of what they send up."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import DivergenceError
from fedgbo.core.random import Rows
from fedgbo.core.state import State
from fedgbo.engines.device import generator_of
from fedgbo.engines.drift import ClientSteps, CohortDrift
from fedgbo.engines.engine import Engine
from fedgbo.engines.fixed import FixedStep
from fedgbo.engines.flat import FlatModel
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
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; the result has `drift`, too."""
        drift = CohortDrift(down.params)
        work = Work(algorithm, down, t)
        order = sorted(zip(cohort, steps, strict=True))
        result = gather((self._client(drift, work, c, k) for c, k in order), down, steps)
        measured = drift.value(steps)
        if (name := next((name for name, value in measured.items() if not math.isfinite(value)), None)) is not None:
            raise DivergenceError(f"the drift's {name} is {measured[name]} in round {t + 1}")
        if self.other is not None:
            result = self.other.train(algorithm, down, cohort, steps, t)
        return replace(result, drift=measured)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        return (self.other or self.plain).evaluate(params)

    def _client(self, drift: CohortDrift, work: Work, client: int, steps: int) -> ClientResult:
        if self._twin is None:
            result = self.plain.train_client(self.plain.model, work, client, steps)
            drift.add(result.up.params, None)
            return result
        seen = ClientSteps(work.down.params)
        watched = WatchedClient(self.plain, work, client, steps, self._twin, seen)
        up = work.algorithm.client_update(work.down, watched)
        drift.add(up.params, seen if seen.gradients else None)  # an algorithm of the user's own may ask for none
        return ClientResult(up, watched.mean_loss(), watched.samples)


class WatchedClient(SimulatedClient):
    """A client that takes the gradient of each of its minibatches at x_t too, on a model kept for that: the same
    samples, augmented in the same way, with the same units dropped out.
    """

    def __init__(
        self, engine: SerialEngine, work: Work, client: int, steps: int, twin: FlatModel, seen: ClientSteps
    ) -> None:
        super().__init__(engine, engine.model, work, client, steps)
        self._twin, self._seen = twin, seen

    def _minibatch(self, rows: Rows) -> Tensor:
        batch, generator = self._batch(rows), generator_of(self._engine.device)
        dropout = generator.get_state()
        reference = self._twin.gradient(self._start, batch, self._terms)[0]
        generator.set_state(dropout)
        loss = self._model.backward(batch, self._terms)
        grad = self._pulled(self._model.params, self._model.flat_gradient())
        self._seen.add(self._model.params, grad, self._pulled(self._start, reference))
        return loss

    def _step(self, rows: Rows, step: FixedStep) -> Tensor:
        loss = self._minibatch(rows)
        self._model.take(step)
        return loss
