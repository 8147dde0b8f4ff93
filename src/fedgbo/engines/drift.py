"""How far a round's clients drift apart: the paper's Figure 1 and its equations (2) and (3).

The measurements are added up client by client, so that memory stays at a few vectors however many clients there are,
and they change nothing of what clients upload.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgbo.core import AffineStep, DivergenceError, FederatedAlgorithm, State, Upload
from fedgbo.engines.client import SimulatedClient, upload_of
from fedgbo.engines.engine import Engine, Gathered, Round, gather
from fedgbo.engines.evaluate import OwnModels, Scores
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.plain import PlainEngine
from fedgbo.tasks.task import Batch


class PairwiseCosine:
    """The mean cosine distance over all pairs of the vectors added so far, from the sum of their directions u_i alone.

    Σ_{i<j} u_i·u_j = (‖Σ u_i‖² - M) / 2, and so the mean of 1 - u_i·u_j over the M (M - 1) / 2 pairs is
    (M² - ‖Σ u_i‖²) / (M (M - 1)). A vector of zeros has no direction: its distance to every other is 1.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._squares = 0.0  # Σ ‖u_i‖²: how many vectors are not zero
        self._count = 0

    def add(self, vector: Tensor) -> None:
        """Count a vector in."""
        length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        unit = vector.to(torch.float64) / (length or 1.0)
        self._sum = unit if self._sum is None else self._sum.add_(unit)
        self._squares += float(length > 0)
        self._count += 1

    def value(self) -> float:
        """Return the mean distance; 0 where there is no pair."""
        if self._sum is None or self._count < 2:
            return 0.0
        pairs = self._count * (self._count - 1)  # each of them twice
        distance = 1 - (float(self._sum.square().sum()) - self._squares) / pairs
        return max(0.0, distance)  # equal models are 1e-16 from 0, on either side


class ClientSteps:
    """What one client's local steps show: each minibatch's gradient where it was taken, and the one it has at x_t."""

    def __init__(self, start: Tensor) -> None:
        self.start = start.to(torch.float64)  # x_t
        self.perturbation = torch.zeros_like(self.start)  # Σ_k ∇f(y_{k-1}; ξ_k) - ∇f(x_t; ξ_k)
        self.reference = torch.zeros_like(self.start)  # Σ_k ∇f(x_t; ξ_k)
        self.gradients = 0
        self.reference_squares = 0.0  # Σ_k ‖∇f(x_t; ξ_k)‖²
        self.step_squares = self.gradient_squares = 0.0  # of the steps that moved, and of the gradients they moved by
        self.largest = 0.0  # of all gradients' norms
        self.smoothness = 0.0  # the largest ‖∇f(y; ξ) - ∇f(x_t; ξ)‖ / ‖y - x_t‖
        self._last: tuple[Tensor, float] | None = None  # where the last gradient was taken, and its square

    def add(self, params: Tensor, grad: Tensor, reference: Tensor) -> None:
        """Count one minibatch in: its gradient at `params`, and at x_t."""
        y = params.to(torch.float64, copy=True)  # engines may write the next step over it
        difference = grad.to(torch.float64) - reference
        square, reference_square = _square(grad), _square(reference)
        self.perturbation += difference
        self.reference += reference
        self.gradients += 1
        self.reference_squares += reference_square
        self.largest = max(self.largest, math.sqrt(square), math.sqrt(reference_square))
        if (moved := math.sqrt(_square(y - self.start))) > 0:
            self.smoothness = max(self.smoothness, math.sqrt(_square(difference)) / moved)
        self._step_to(y)
        self._last = y, square

    def end(self, up: Tensor) -> None:
        """Count the last step in, from what the client sends up, x_t - y_K."""
        self._step_to(self.start - up)

    def _step_to(self, y: Tensor) -> None:
        if self._last is not None and (moved := _square(y - self._last[0])) > 0:
            self.step_squares += moved
            self.gradient_squares += self._last[1]


class CohortDrift:
    """Adds up a round's clients."""

    def __init__(self, start: Tensor) -> None:
        self.start = start.to(torch.float64)
        self._models, self._updates = PairwiseCosine(), PairwiseCosine()
        self._clients: list[ClientNumbers] = []
        self._perturbation = torch.zeros_like(self.start)
        self._reference = torch.zeros_like(self.start)

    def add(self, up: Tensor, steps: ClientSteps | None) -> None:
        """Count a client in: the difference x_t - y_K that it sends up and, if they were watched, its steps."""
        self._updates.add(up)
        self._models.add(self.start - up)
        if steps is not None:
            steps.end(up)
            self._perturbation += steps.perturbation
            self._reference += steps.reference
            self._clients.append(ClientNumbers.of(steps))

    def value(self, local_steps: Sequence[int]) -> dict[str, float]:
        """Return the round's numbers; `local_steps` has K of each client."""
        cosines = {"cosine": self._models.value(), "update_cosine": self._updates.value()}
        return cosines | self._perturbed(sum(local_steps), len(local_steps)) if self._clients else cosines

    def _perturbed(self, steps: int, cohort: int) -> dict[str, float]:
        """Return ‖e_t‖ of (2), and (3) with its constants estimated from the gradients seen."""
        clients = self._clients
        seen = sum(c.gradients for c in clients)
        gradient = _square(self._reference / seen)  # ‖g_t‖²
        noise = sum(c.variance for c in clients) / len(clients)
        each = seen / len(clients)  # K or, where a gradient at x_t is sent up as well (MimeXlite), K + 1
        k = steps / cohort
        between = sum(c.gradients * c.mean_square for c in clients) / seen - gradient
        between *= len(clients) / max(1, len(clients) - 1)
        heterogeneity = max(0.0, between - noise / each)  # means of K minibatches differ by noise alone, too
        smoothness = max(c.smoothness for c in clients)
        stepped = sum(c.gradient_squares for c in clients)
        reach = math.sqrt(sum(c.step_squares for c in clients) / stepped) * k if stepped else 0.0  # B η K
        return {
            "error": math.sqrt(_square(self._perturbation / steps)),
            "bound": smoothness * reach * math.sqrt(gradient + heterogeneity + noise / k),
            "gradient": math.sqrt(gradient),
            "largest": max(c.largest for c in clients),
            "smoothness": smoothness,
            "heterogeneity": math.sqrt(heterogeneity),
            "noise": math.sqrt(noise),
        }


@dataclass(frozen=True)
class ClientNumbers:
    """What is kept of a client's steps when its vectors are gone."""

    gradients: int
    mean_square: float  # of the mean gradient at x_t
    variance: float  # of one minibatch's gradient at x_t; of a single one it is 0, and clients' differences get it all
    step_squares: float
    gradient_squares: float
    largest: float
    smoothness: float

    @classmethod
    def of(cls, steps: ClientSteps) -> "ClientNumbers":
        """Take the numbers out of the vectors."""
        n, mean_square = steps.gradients, _square(steps.reference / steps.gradients)
        return cls(
            gradients=n,
            mean_square=mean_square,
            variance=max(0.0, steps.reference_squares - n * mean_square) / (n - 1) if n > 1 else 0.0,
            step_squares=steps.step_squares,
            gradient_squares=steps.gradient_squares,
            largest=steps.largest,
            smoothness=steps.smoothness,
        )


def _square(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2


class MeasuringEngine:
    """Trains with the plain engine, one client at a time, and measures every client.

    Where another engine makes the run's result (the sparse one, which rounds in another way), the plain engine goes
    through the round once more beside it: the result is the one of an unmeasured run.
    """

    def __init__(
        self, plain: PlainEngine, algorithm: FederatedAlgorithm, *, gradients: bool, other: Engine | None = None
    ) -> None:
        self.plain, self.other = plain, other
        self.task, self.seed, self.model = plain.task, plain.seed, plain.model
        self.origin, self.sample = plain.origin, plain.sample
        self.choice = f"{(other or plain).choice}; drift is measured, which takes one client at a time"
        self._twin: FlatModel | None = None  # for gradients at x_t
        if gradients:
            self._twin = plain.new_model(algorithm.terms)

    def train(self, work: Round) -> Gathered:
        drift = CohortDrift(work.down.params)
        gathered = gather(self._uploads(work, drift), work, self.task.data.clients)
        measured = drift.value(work.steps)
        if (name := next((name for name, value in measured.items() if not math.isfinite(value)), None)) is not None:
            raise DivergenceError(f"the drift's {name} is {measured[name]} in round {work.t + 1}")
        if self.other is not None:
            gathered = self.other.train(work)
        return replace(gathered, drift=measured)

    def evaluate(self, server: State, own_models: OwnModels | None = None) -> Scores:
        return (self.other or self.plain).evaluate(server, own_models)

    def _uploads(self, work: Round, drift: CohortDrift) -> Iterator[Upload]:
        for client, steps in zip(work.cohort, work.steps, strict=True):
            if self._twin is None:
                upload = self.plain.train_client(self.plain.model, work, client, steps)
                drift.add(upload.state.params, None)
            else:
                seen = ClientSteps(work.down.params)
                upload = upload_of(_WatchedClient(self.plain, work, (client, steps), self._twin, seen), work, self.seed)
                # an algorithm of the user's own may ask for no gradient
                drift.add(upload.state.params, seen if seen.gradients else None)
            yield upload


class _WatchedClient(SimulatedClient):
    """A client that takes the gradient of each of its minibatches at x_t too, on a model of its own: the same samples,
    augmented in the same way, with the same units dropped out.
    """

    def __init__(
        self, engine: PlainEngine, work: Round, who: tuple[int, int], twin: FlatModel, seen: ClientSteps
    ) -> None:
        super().__init__(engine, engine.model, work, *who)
        self._twin, self._seen = twin, seen

    def backward(self, batch: Batch) -> Tensor:
        with self._engine.generators.kept():
            reference = self._twin.gradient(self.start, batch, self.terms)[0]
        loss = super().backward(batch)
        grad = self.pulled(self.model.params, self.model.flat_gradient(self.model.params))
        self._seen.add(self.model.params, grad, self.pulled(self.start, reference))
        return loss

    def step(self, batch: Batch, step: AffineStep) -> Tensor:
        loss = self.backward(batch)
        self.model.take(step)
        return loss
