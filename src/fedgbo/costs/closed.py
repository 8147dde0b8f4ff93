"""What one client costs in one round, in closed form, for the package's own algorithms (the paper's Appendix B).

>>> from fedgbo import FedGBO, SGDm
>>> cost = client_cost(FedGBO(SGDm(lr=0.1, beta=0.9)), Workload(params=1_250_852, macs=5_163_072, batch_size=32), 10)
>>> cost.download_bytes // 1_250_852, cost.upload_bytes // 1_250_852, f"{cost.flops:.3g}"
(8, 4, '5.02e+09')
"""

from dataclasses import dataclass
from typing import Any

from fedgbo.algorithms import MFL, SCAFFOLD, AdaptiveFedOpt, FedAvg, FedGBO, FedMAX, FedProx, Mimelite, MimeXlite
from fedgbo.core import ConfigError, FederatedAlgorithm, Proximal, SharpnessAware
from fedgbo.costs.flops import local_update_flops
from fedgbo.costs.operations import step_operations
from fedgbo.optimisers import SGD, Adam, RMSProp, SGDm

STATS: dict[type, tuple[str, ...]] = {SGD: (), SGDm: ("stats.m",), RMSProp: ("stats.v",), Adam: ("stats.m", "stats.v")}
KNOWN = (FedAvg, FedProx, FedMAX, AdaptiveFedOpt, MFL, Mimelite, MimeXlite, FedGBO, SCAFFOLD)  # with formulas here


@dataclass(frozen=True)
class Exchange:
    """What an algorithm asks of a client in a round of K local steps; vectors by name, each as long as the model."""

    down: tuple[str, ...]
    up: tuple[str, ...]
    memory: tuple[str, ...]  # held besides the gradient at hand and the model's activations, as in Table 1
    minibatches: int  # gradients of one minibatch each
    full_batches: int  # gradients of all of the client's samples
    step_operations: int  # per parameter and local step, besides gradients


def exchange(algorithm: FederatedAlgorithm, local_steps: int) -> Exchange:
    """Return the formulas of one of the package's own algorithms; raise ConfigError for another class."""
    kind, operations = type(algorithm), step_operations(algorithm)
    optimiser: Any = type(getattr(algorithm, "optimiser", None))
    stats = STATS.get(optimiser)
    if kind not in KNOWN or operations is None or (kind is not AdaptiveFedOpt and stats is None):
        raise ConfigError(
            f"there is no cost formula for {kind.__name__} with this optimiser and these terms; "
            "the record of a real run has what it sent and computed"
        )
    down: tuple[str, ...] = ("params",)
    up: tuple[str, ...] = ("params",)
    if kind in (FedGBO, MFL, Mimelite, MimeXlite):
        down += stats or ()
    if kind is MFL:
        up += stats or ()
    if kind in (Mimelite, MimeXlite) or (isinstance(algorithm, FedGBO) and not algorithm.inverts):
        up += ("stats.gradient",)
    if kind is SCAFFOLD:
        down, up = (*down, "stats.c"), (*up, "stats.c")
    gradients = 2 ** sum(isinstance(term, SharpnessAware) for term in algorithm.terms)  # for each that is asked for
    return Exchange(
        down=down,
        up=up,
        memory=held_vectors(algorithm, down, up),
        minibatches=gradients * (local_steps + (kind is MimeXlite)),
        full_batches=gradients * int(kind is Mimelite),
        step_operations=operations,
    )


def held_vectors(algorithm: FederatedAlgorithm, down: tuple[str, ...], up: tuple[str, ...]) -> tuple[str, ...]:
    """Name the vectors that a client holds, given those it downloads and uploads, as in the paper's Table 1.

    The local model, and statistics that move, take the place of those downloaded under the same name. The start x_t is
    kept where a proximal term needs it, but not for the difference that is uploaded: a device can send y_K as well.
    """
    kept = ("start",) if any(isinstance(term, Proximal) for term in algorithm.terms) else ()
    own = ("client.c",) if isinstance(algorithm, SCAFFOLD) else ()
    return (*dict.fromkeys((*down, *up)), *kept, *own)


@dataclass(frozen=True)
class Workload:
    """A model and the samples that it sees on one client."""

    params: int  # |x|
    macs: int  # F, see flops.forward_macs
    batch_size: int | None  # B; None: all of the client's samples
    samples: float | None = None  # n; an average will do
    gradient_flops: float | None = None  # of one sample, see flops.gradient_flops

    def sample_gradients(self, asked: Exchange) -> float:
        """Return how many gradients of one sample the client computes in a round."""
        if self.samples is None and (asked.full_batches or self.batch_size is None):
            raise ConfigError("this algorithm takes gradients on all of a client's samples; give Workload(samples=...)")
        whole = self.samples or 0.0
        return asked.minibatches * (whole if self.batch_size is None else self.batch_size) + asked.full_batches * whole


@dataclass(frozen=True)
class ClientCost:
    """One client, one round."""

    download_bytes: int
    upload_bytes: int
    memory_bytes: int  # parameters, statistics and what else the algorithm makes a client hold
    flops: float  # as the paper counts them
    counted_flops: float | None  # with gradients as torch counts them; None without Workload.gradient_flops


def client_cost(algorithm: FederatedAlgorithm, work: Workload, local_steps: int) -> ClientCost:
    """Return what a round of K local steps costs a client, with numbers in float32."""
    asked = exchange(algorithm, local_steps)
    vector = work.params * 4
    gradients = work.sample_gradients(asked)
    updates = local_steps * asked.step_operations * work.params
    return ClientCost(
        download_bytes=len(asked.down) * vector,
        upload_bytes=len(asked.up) * vector,
        memory_bytes=len(asked.memory) * vector,
        flops=local_update_flops(gradients, local_steps, work.macs, work.params, asked.step_operations),
        counted_flops=None if work.gradient_flops is None else gradients * work.gradient_flops + updates,
    )
