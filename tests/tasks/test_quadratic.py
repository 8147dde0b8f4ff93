"""The synthetic quadratics' constants, by hand and against autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgbo
from fedgbo.tasks import TASKS
from fedgbo.tasks.quadratic import Quadratics

# Two clients in two dimensions: ½ (x² + 4 y²) about (1, 1) and (3, 1), ½ (4 x² + y²) about (-1, 0) twice
BY_HAND = Quadratics(
    np.array([[1.0, 4.0], [4.0, 1.0]]), np.array([[[1.0, 1.0], [3.0, 1.0]], [[-1.0, 0.0], [-1.0, 0.0]]])
)


def test_constants_by_hand():
    assert BY_HAND.smoothness == 4
    assert [end.tolist() for end in BY_HAND.box] == [[-1, 0], [3, 1]]  # of 0 and all minimisers
    # largest gradients: client 0 (4, 4·1) from (-1, 0) to (3, 1); client 1 (4·4, 1) from (3, 1) to (-1, 0)
    assert BY_HAND.largest_gradient == pytest.approx(np.hypot(16, 1))
    # client 0's minimisers are (1, 0) and (-1, 0) about their mean; client 1 has no noise
    assert BY_HAND.noise(1) == pytest.approx(1)
    assert BY_HAND.noise(4) == pytest.approx(1 / 2)
    # gradients (x - 2, 4 y - 4) and (4 x + 4, y): half their difference is (3 x + 6, 4 - 3 y) / 2, largest at (3, 0)
    assert BY_HAND.heterogeneity == pytest.approx(np.hypot(15 / 2, 4 / 2))
    assert BY_HAND.optimum == pytest.approx([-2 / 5, 4 / 5])
    assert BY_HAND.gradient(BY_HAND.optimum) == pytest.approx([0, 0])
    assert BY_HAND.value(np.zeros(2)) == pytest.approx(((1 + 4 + 9 + 4) + (4 + 4)) / 8)
    assert BY_HAND.gap == pytest.approx(BY_HAND.value(np.zeros(2)) - BY_HAND.value(np.array([-0.4, 0.8])))


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 6),
    samples=st.integers(1, 6),
    heterogeneity=st.floats(0, 5),
    noise=st.floats(0, 5),
    condition=st.floats(1, 100),
    seed=st.integers(0, 99),
)
def test_the_constants_hold_everywhere_in_the_box(clients, samples, heterogeneity, noise, condition, seed):
    quadratics = Quadratics.draw(3, clients, samples, heterogeneity, noise, condition, seed)
    low, high = quadratics.box
    rng = np.random.default_rng(seed)
    for x in [low, high, *(low + rng.random((5, 3)) * (high - low))]:
        each = quadratics.curvatures[:, None] * (x - quadratics.minimisers)
        of_clients = each.mean(axis=1)
        slack = 1 + 1e-9
        assert np.linalg.norm(each, axis=2).max() <= quadratics.largest_gradient * slack
        spread = ((of_clients - of_clients.mean(axis=0)) ** 2).sum(axis=1).mean()
        assert spread <= quadratics.heterogeneity**2 * slack + 1e-12
        assert quadratics.value(x) >= quadratics.value(quadratics.optimum) - 1e-12
    assert quadratics.heterogeneity <= quadratics.largest_gradient * (1 + 1e-9)
    assert quadratics.smoothness == 1


def test_the_task_is_the_formula():
    task = BY_HAND.task()
    model = task.model()
    x = torch.tensor([0.3, -0.7], dtype=torch.float64)
    model.x.data.copy_(x)
    inputs, targets = task.data.train.batch(np.array([0, 1]))  # all of client 0
    task.loss(model(inputs), targets).backward()
    assert model.x.grad.tolist() == pytest.approx([0.3 - 2, 4 * (-0.7 - 1)])
    everything = task.data.test.batch(np.arange(4))
    assert task.loss(model(everything[0]), everything[1]).item() == pytest.approx(BY_HAND.value(x.numpy()))


def test_clients_drift_away_from_the_optimum():
    """With curvatures of their own, many local steps lead to another point than the minimiser of the mean."""
    quadratics = Quadratics.draw(4, 5, 3, 2.0, 0.0, 10.0, 0)
    task = quadratics.task()

    def away(local_steps, rounds):
        result = fedgbo.run(task, fedgbo.FedAvg(fedgbo.SGD(lr=0.9)), rounds=rounds, local_steps=local_steps)
        return np.linalg.norm(result.params.numpy() - quadratics.optimum)

    assert away(1, rounds=120) < 1e-6
    assert away(20, rounds=40) > 0.1


def test_from_the_catalogue():
    task = TASKS["quadratic"](clients=3, samples=2, dimension=1, condition=1)
    assert (task.cohort_size, task.batch_size, task.metric) == (3, 2, None)
    result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)), rounds=30)
    assert result.loss < result.history[0].loss


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dimension": 0}, "dimension must be a whole number of at least 1"),
        ({"noise": -1.0}, "noise must be a finite number of at least 0"),
        ({"heterogeneity": float("nan")}, "heterogeneity must be a finite number of at least 0"),
        ({"condition": 0.5}, "condition must be a finite number of at least 1, not 0.5"),
    ],
)
def test_settings_that_make_no_sense(setting, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        TASKS["quadratic"](**setting)
