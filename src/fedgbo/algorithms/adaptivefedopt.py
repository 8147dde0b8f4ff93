"""AdaptiveFedOpt (Reddi et al., Adaptive Federated Optimization, 2021) and its instances with names of their own."""

from dataclasses import dataclass

from torch import Tensor

from fedgbo.core import Client, FederatedAlgorithm, Mean, Optimiser, State
from fedgbo.optimisers.adagrad import AdaGrad
from fedgbo.optimisers.adam import Adam
from fedgbo.optimisers.sgd import SGD
from fedgbo.optimisers.sgdm import SGDm
from fedgbo.optimisers.yogi import Yogi


@dataclass(frozen=True)
class _ServerOptimiser(FederatedAlgorithm):
    """Only the server has an optimiser with statistics, which uses the mean difference as a gradient.

    client: K times y <- y - η g, from y = x_t
    server: g = mean of x_t - y;  one step of the server's optimiser with g
    """

    client: SGD
    server: Optimiser

    def init(self, params: Tensor) -> State:
        return State(params, self.server.init(params))

    def broadcast(self, server: State) -> State:
        return State(server.params)

    def client_update(self, down: State, client: Client) -> State:
        y = client.descend(down.params, self.client, down.stats)
        return State(down.params - y)

    def server_update(self, server: State, mean: Mean, steps: float) -> State:
        return State(*self.server.step(server.params, server.stats, mean.params))


@dataclass(frozen=True)
class AdaptiveFedOpt(_ServerOptimiser):
    """Any optimiser on the server. With server=SGD(lr=1.0) this is FedAvg."""


@dataclass(frozen=True)
class FedAvgM(_ServerOptimiser):
    """Momentum on the server (Hsu, Qi and Brown, 2019). Their m has no factor 1 - β; their rate 1 is 1 / (1 - β)."""

    server: SGDm


@dataclass(frozen=True)
class FedAdam(_ServerOptimiser):
    """Adam on the server. The paper's τ is our ε. Its v starts at τ² or more, ours at Adam's `initial`: 1."""

    server: Adam


@dataclass(frozen=True)
class FedYogi(_ServerOptimiser):
    """Yogi on the server; τ and v are as in FedAdam."""

    server: Yogi


@dataclass(frozen=True)
class FedAdagrad(_ServerOptimiser):
    """AdaGrad on the server, without momentum, as in the paper's experiments; τ and v are as in FedAdam."""

    server: AdaGrad
