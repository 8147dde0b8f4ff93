"""Closed forms against numbers worked out by hand, and against what a real run's ledger says."""

import pytest

import fedgbo
from fedgbo import SCAFFOLD, SGD, FedAvg, FedGBO, FedProx, Mimelite, MimeXlite, SGDm
from fedgbo.algorithms import ALGORITHMS, PAPER
from fedgbo.core.errors import ConfigError
from fedgbo.costs.closed import Workload, client_cost, exchange
from tests.conftest import make_task
from tests.examples import CLOSED

WORK = Workload(params=1000, macs=50, batch_size=4, samples=20, gradient_flops=290.0)
SGDM = SGDm(lr=0.1, beta=0.9)


def test_bytes():
    cost = client_cost(Mimelite(SGDM), WORK, 10)
    assert (cost.download_bytes, cost.upload_bytes, cost.memory_bytes) == (8000, 8000, 12000)


def test_flops_of_appendix_b():
    assert client_cost(FedAvg(SGD(lr=0.1)), WORK, 10).flops == 10 * (4 * 150 + 2 * 1000)
    assert client_cost(FedProx(SGD(lr=0.1), mu=0.1), WORK, 10).flops == 10 * (4 * 150 + 5 * 1000)
    assert client_cost(FedGBO(SGDM), WORK, 10).flops == 10 * (4 * 150 + 5 * 1000)
    assert client_cost(Mimelite(SGDM), WORK, 10).flops == 10 * (4 * 150 + 5 * 1000) + 20 * 150
    assert client_cost(MimeXlite(SGDM), WORK, 10).flops == 10 * (4 * 150 + 5 * 1000) + 4 * 150


def test_flops_as_executed():
    assert client_cost(FedGBO(SGDM), WORK, 10).counted_flops == 10 * 4 * 290 + 10 * 5 * 1000
    assert client_cost(FedGBO(SGDM), Workload(1000, 50, 4), 10).counted_flops is None


def test_without_a_batch_size_a_step_takes_all_samples():
    assert client_cost(FedAvg(SGD(lr=0.1)), Workload(1000, 50, None, 20), 2).flops == 2 * (20 * 150 + 2000)


def test_a_full_gradient_needs_the_number_of_samples():
    with pytest.raises(ConfigError, match=r"all of a client's samples; give Workload\(samples=...\)"):
        client_cost(Mimelite(SGDM), Workload(1000, 50, 4), 10)


def test_scaffold_sends_and_holds_its_control_variates():
    cost = client_cost(SCAFFOLD(SGD(lr=0.1)), WORK, 10)
    assert (cost.download_bytes, cost.upload_bytes) == (8000, 8000)
    assert exchange(SCAFFOLD(SGD(lr=0.1)), 10).memory.count("client.c") == 1


class Own(FedAvg):
    """Might send anything."""


def test_other_classes_have_no_closed_form():
    with pytest.raises(ConfigError, match="there is no cost formula for Own with this optimiser and these terms"):
        exchange(Own(SGD(lr=0.1)), 10)


EVERY = [
    *CLOSED,
    FedGBO(SGDM, objective=fedgbo.SharpnessAware(0.1)),
    FedGBO(SGDM),
    FedGBO(SGDM, inverse=False),
    MimeXlite(SGDM, objective=fedgbo.Proximal(0.1)),
]


def test_every_algorithm_of_the_paper_is_among_them():
    assert {type(algorithm) for algorithm in EVERY} == {ALGORITHMS[name] for name in (*PAPER, "scaffold")}


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_the_closed_form_is_what_a_run_spends(algorithm):
    task = make_task(clients=3, samples=6, clients_per_round=2, batch_size=4)
    gradient = 2 * (20 + 20 + 8)  # forward, weights, and the second layer's inputs
    work = Workload(params=26, macs=20, batch_size=4, samples=6, gradient_flops=gradient)
    spent = fedgbo.run(task, algorithm, rounds=3, local_steps=5).history[-1]
    cost = client_cost(algorithm, work, 5)
    assert spent.flops == 3 * 2 * cost.flops
    assert spent.counted_flops == 3 * 2 * cost.counted_flops
    assert spent.download_bytes == 3 * 2 * cost.download_bytes
    assert spent.upload_bytes == 3 * 2 * cost.upload_bytes
