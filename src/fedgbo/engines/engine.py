"""What the round loop asks of an engine."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.state import State
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.serial import CohortResult
from fedgbo.tasks.task import Task


class Engine(Protocol):
    """Runs client updates and evaluates: the same results from every engine, up to rounding."""

    task: Task
    seed: int
    model: FlatModel
    initial_params: Tensor
    sample: tuple[Tensor, Tensor]  # a small batch, for counting what a sample costs

    def train(
        self, algorithm: FederatedAlgorithm, down: State, cohort: Sequence[int], steps: Sequence[int], t: int
    ) -> CohortResult:
        """Run round t's client updates; `steps` has the number of local steps of each client in the cohort."""

    def evaluate(self, params: Tensor) -> dict[str, float]:
        """Return the test loss and, where the task has a metric, the accuracy."""
