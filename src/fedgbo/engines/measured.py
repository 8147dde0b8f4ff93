"""An engine that measures how clients drift while they train, and changes nothing of what they send up."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.client import Client
from fedgbo.core.errors import DivergenceError
from fedgbo.core.state import State
from fedgbo.engines.drift import ClientSteps, CohortDrift
from fedgbo.engines.engine import Engine
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.serial import ClientResult, CohortResult, SerialEngine, SimulatedClient, gather


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
        self._twin = _twin(plain, algorithm) if gradients else None  # a model for gradients at x_t

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; the result has `drift`, too."""
        drift = CohortDrift(down.params)
        order = sorted(zip(cohort, steps, strict=True))
        result = gather((self._client(drift, algorithm, down, c, k, t) for c, k in order), down, steps)
        measured = drift.value(steps)
        if (name := next((name for name, value in measured.items() if not math.isfinite(value)), None)) is not None:
            raise DivergenceError(f"the drift's {name} is {measured[name]} in round {t + 1}")
        if self.other is not None:
            result = self.other.train(algorithm, down, cohort, steps, t)
        return replace(result, drift=measured)

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
        return (self.other or self.plain).evaluate(params)

    def _client(
        self, drift: CohortDrift, algorithm: FederatedAlgorithm, down: State, client: int, steps: int, t: int
    ) -> ClientResult:
        if self._twin is None:
            result = self.plain.train_client(self.plain.model, algorithm, down, client, steps, t)
            drift.add(result.up.params, None)
            return result
        twin = SimulatedClient(self.plain, self._twin, algorithm, down, client, steps, t)
        simulated = SimulatedClient(self.plain, self.plain.model, algorithm, down, client, steps, t)
        seen = ClientSteps(down.params)
        up = algorithm.client_update(down, WatchedClient(simulated, twin, down.params, seen))
        drift.add(up.params, seen if seen.gradients else None)  # an algorithm of the user's own may ask for none
        return ClientResult(up, simulated.mean_loss(), simulated.samples)


class WatchedClient(Client):
    """A client with a twin that takes the gradient of each of its minibatches at x_t: same samples, same augmentation,
    same units dropped out.
    """

    def __init__(self, client: SimulatedClient, twin: SimulatedClient, start: Tensor, seen: ClientSteps) -> None:
        self.steps = client.steps
        self._client, self._twin, self._start, self._seen = client, twin, start, seen

    def gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on the next minibatch."""
        dropout = torch.get_rng_state()
        self._twin.augment.bit_generator.state = self._client.augment.bit_generator.state
        reference = self._twin.gradient(self._start)
        torch.set_rng_state(dropout)
        grad = self._client.gradient(params)
        self._seen.add(params, grad, reference)
        return grad

    def full_gradient(self, params: Tensor) -> Tensor:
        """Return the gradient at `params` on all samples: no local step, and so not part of equation (2)."""
        return self._client.full_gradient(params)


def _twin(plain: SerialEngine, algorithm: FederatedAlgorithm) -> FlatModel:
    model = FlatModel(plain.build_model(), plain.task.loss)
    if any(term.needs_hidden for term in algorithm.terms):
        model.watch_hidden(plain.sample[0])
    return model
