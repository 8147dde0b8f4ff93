"""What the probe reads off the algorithms, against the paper's Table 1 and against operations counted by hand."""

from dataclasses import dataclass

import pytest
import torch

from fedgbo import MFL, SGD, Adam, AdaptiveFedOpt, FedAvg, FedGBO, FedMAX, FedProx, Mimelite, MimeXlite, Proximal, SGDm
from fedgbo.core.errors import ConfigError
from fedgbo.core.objective import Term
from fedgbo.core.optimiser import Optimiser
from fedgbo.core.schedule import Step
from fedgbo.core.state import State
from fedgbo.costs.probe import probe
from fedgbo.optimisers import RMSProp

SGDM = SGDm(lr=0.1, beta=0.9)
MULTIPLES = {  # of |x|, with momentum as the only statistic, so that |s| = |x|: down, up, memory
    "fedavg": (FedAvg(SGD(lr=0.1)), 1, 1, 1),
    "fedprox": (FedProx(SGD(lr=0.1), mu=0.1), 1, 1, 2),
    "fedmax": (FedMAX(SGD(lr=0.1), beta=1.0), 1, 1, 1),
    "adaptivefedopt": (AdaptiveFedOpt(SGD(lr=0.1), SGDM), 1, 1, 1),
    "mfl": (MFL(SGDM), 2, 2, 2),
    "mimelite": (Mimelite(SGDM), 2, 2, 3),
    "mimexlite": (MimeXlite(SGDM), 2, 2, 3),
    "fedgbo": (FedGBO(SGDM), 2, 1, 2),
    "fedgbo without the inverse": (FedGBO(SGDM, inverse=False), 2, 2, 3),
    "fedgbo with Adam": (FedGBO(Adam(lr=0.1, beta1=0.9)), 3, 1, 3),
    "mimelite with a pull": (Mimelite(SGDM, objective=Proximal(mu=0.1)), 2, 2, 4),
}


@pytest.mark.parametrize("name", MULTIPLES)
def test_table_1(name):
    algorithm, down, up, memory = MULTIPLES[name]
    asked = probe(algorithm, 3)
    assert (len(asked.down), len(asked.up), len(asked.memory)) == (down, up, memory)


def test_gradients_are_counted():
    assert (probe(FedGBO(SGDM), 7).minibatches, probe(FedGBO(SGDM), 7).full_batches) == (7, 0)
    assert (probe(Mimelite(SGDM), 7).minibatches, probe(Mimelite(SGDM), 7).full_batches) == (7, 1)
    assert (probe(MimeXlite(SGDM), 7).minibatches, probe(MimeXlite(SGDM), 7).full_batches) == (8, 0)


@pytest.mark.parametrize(
    ("algorithm", "a_step"),
    [
        (FedAvg(SGD(lr=0.1)), 2),  # η g, y -
        (FedProx(SGD(lr=0.1), mu=0.1), 5),  # y - x, μ, +; η, -
        (FedGBO(SGDM), 5),  # β m, (1-β) g, +, η, -
        (MFL(SGDM), 5),  # β m, (1-β) g, +, η, -
        (FedGBO(RMSProp(lr=0.1, beta=0.9)), 5),  # η g, √, + ε, /, -
        (MFL(RMSProp(lr=0.1, beta=0.9)), 9),  # those, and β v, g², (1-β), +
    ],
)
def test_operations_are_counted_as_they_are_executed(algorithm, a_step):
    assert probe(algorithm, 4).operations == 4 * a_step + 1  # and x_t - y_K once


def test_a_pull_of_strength_0_still_needs_the_start():
    assert probe(FedProx(SGD(lr=0.1), mu=0.0), 1).memory == ("params", "start")


def test_a_term_without_the_start_holds_nothing():
    class WeightDecay(Term):
        def gradient(self, params, start):
            return 0.1 * params

    assert probe(FedAvg(SGD(lr=0.1), objective=WeightDecay()), 1).memory == ("params",)


def test_schedules_are_no_hindrance():
    assert probe(FedGBO(SGDm(lr=Step(0.1, every=10), beta=0.9)), 2).minibatches == 2


def test_a_users_own_algorithm_and_optimiser():
    @dataclass(frozen=True)
    class ThreeStatistics(Optimiser):
        def init(self, params):
            return {name: torch.zeros_like(params) for name in "abc"}

        def update(self, params, stats, grad):
            return params.clone() - grad  # the copy is no arithmetic

    class SendsTwice(FedAvg):
        def client_update(self, down, client):
            return State(down.params, {"again": client.full_gradient(down.params)})

    assert probe(FedGBO(ThreeStatistics()), 1).down == ("params", "stats.a", "stats.b", "stats.c")
    assert probe(FedGBO(ThreeStatistics()), 1).operations == 1 + 1 + 1  # the step, the sum of gradients, the difference
    asked = probe(SendsTwice(SGD(lr=0.1)), 5)
    assert (asked.up, asked.minibatches, asked.full_batches) == (("params", "stats.again"), 0, 1)


def test_no_steps_are_refused():
    with pytest.raises(ConfigError, match="steps must be a whole number of at least 1, not 0"):
        probe(FedGBO(SGDM), 0)
