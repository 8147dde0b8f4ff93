"""What one client costs in one round, in closed form, for any model, algorithm and optimiser (the paper's Appendix B).

>>> from fedgbo import FedGBO, SGDm
>>> cost = client_cost(FedGBO(SGDm(lr=0.1, beta=0.9)), Workload(params=1_250_852, macs=5_163_072, batch_size=32), 10)
>>> cost.download_bytes // 1_250_852, cost.upload_bytes // 1_250_852, f"{cost.flops:.3g}"
(8, 4, '5.02e+09')
"""

from dataclasses import dataclass

from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.core.errors import ConfigError
from fedgbo.costs.flops import local_update_flops
from fedgbo.costs.probe import Probe, probe


@dataclass(frozen=True)
class Workload:
    """A model and the samples that it sees on one client."""

    params: int  # |x|
    macs: int  # F, see flops.forward_macs
    batch_size: int | None  # B; None: all of the client's samples
    samples: float | None = None  # n; an average will do
    gradient_flops: float | None = None  # of one sample, see counted.gradient_flops

    def sample_gradients(self, asked: Probe) -> float:
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
    counted_flops: float | None  # as they are executed; None without Workload.gradient_flops


def client_cost(
    algorithm: FederatedAlgorithm, work: Workload, local_steps: int, *, bytes_per_number: int = 4
) -> ClientCost:
    """Return what a round of K local steps costs a client; numbers are float32 unless said otherwise."""
    asked = probe(algorithm, local_steps)
    vector = work.params * bytes_per_number
    gradients = work.sample_gradients(asked)
    counted = None
    if work.gradient_flops is not None:
        counted = gradients * work.gradient_flops + asked.operations * work.params
    return ClientCost(
        download_bytes=len(asked.down) * vector,
        upload_bytes=len(asked.up) * vector,
        memory_bytes=len(asked.memory) * vector,
        flops=local_update_flops(gradients, asked.steps, work.macs, work.params, algorithm.step_ops),
        counted_flops=counted,
    )
