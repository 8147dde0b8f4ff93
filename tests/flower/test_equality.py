"""A federation with nobody missing gives what `fedgbo run` gives, bit for bit: parameters, statistics and records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.flower import client_app
from fedgbo.tasks.femnist import femnist_synthetic
from tests.conftest import make_task
from tests.flower.federations import COMBINATIONS, GBO, algorithm_of, everyone, federate, nodes, simulate, some, told
from tests.flower.grids import LocalGrid


@pytest.mark.parametrize("builder", [everyone, some])
@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_every_algorithm_with_every_optimiser(combination, builder):
    algorithm = algorithm_of(combination)
    assert told(federate(builder, algorithm)) == told(simulate(builder, algorithm))


def test_schedules_lists_of_steps_and_terms():
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(lr=fedgbo.Exponential(0.3, 0.5), beta=0.9), objective=fedgbo.Proximal(mu=0.1))
    steps = [1, 2, 3, 1, 2, 3]
    ours = federate(some, algorithm, rounds=3, local_steps=steps)
    assert told(ours) == told(simulate(some, algorithm, rounds=3, local_steps=steps))


def large():
    return replace(femnist_synthetic(clients=3, test_samples=20), clients_per_round=3)


def large_of_other_cohorts():
    """What a node's own task says of cohorts and batches does not count."""
    return replace(large(), clients_per_round=2, batch_size=5)


def test_a_node_with_a_task_of_other_cohorts_and_batches():
    grid = LocalGrid(nodes(large_of_other_cohorts))
    assert told(federate(large, grid=grid, rounds=1, local_steps=1)) == told(simulate(large, rounds=1, local_steps=1))


def own_data(config):
    """A hospital's own task: it has the data of its clients only, and knows of nobody else's."""
    data = everyone().data
    numbers = [int(number) for number in config["clients"].split(",")]
    train = [data.train.batch(np.arange(data.offsets[c], data.offsets[c + 1]), None) for c in numbers]
    test = data.test.batch(np.arange(3), None)
    return fedgbo.Task("mine", fedgbo.FederatedData.from_clients(train=train, test=test), everyone().model)


def test_nodes_that_have_their_own_data_only():
    homes = [(client_app(own_data), {"clients": numbers}) for numbers in ("5", "0,2", "1,4", "3")]
    assert told(federate(everyone, grid=LocalGrid(homes))) == told(simulate(everyone))


def frozen_and_normed():
    """A frozen layer, a layer whose running statistics travel with the model, and dropout."""
    body = nn.Linear(3, 8).requires_grad_(False)
    return nn.Sequential(body, nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def normed():
    return make_task(clients=6, batch_size=4, model=frozen_and_normed)


def test_buffers_travel_and_frozen_parameters_do_not():
    ours, own = federate(normed), simulate(normed)
    assert told(ours) == told(own)
    assert len(own.params) == 34
    assert len(own.state.buffers) == 17
    assert all(torch.equal(x, ours.model().state_dict()[name]) for name, x in own.model().state_dict().items())


def test_more_nodes_or_fewer_make_no_difference():
    def with_nodes(count):
        homes = [(client_app(some), {"partition-id": i, "num-partitions": count}) for i in range(count)]
        return told(federate(some, GBO, grid=LocalGrid(homes)))

    assert with_nodes(1) == with_nodes(6)


def doubles():
    return make_task(clients=6, batch_size=4, dtype=torch.float64)


def test_a_model_in_float64():
    assert told(federate(doubles)) == told(simulate(doubles))
