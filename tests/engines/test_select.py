import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.engines import select
from fedgbo.engines.parallel import ParallelEngine
from fedgbo.engines.select import engine_for
from fedgbo.engines.serial import SerialEngine
from fedgbo.engines.sparse import SparseEngine
from fedgbo.tasks import TASKS
from tests.conftest import make_task

AVG = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))


@pytest.mark.parametrize(
    ("name", "workers", "kind"),
    [
        ("digits", 2, SerialEngine),
        ("cifar100-synthetic", 1, SerialEngine),
        ("cifar100-synthetic", 2, ParallelEngine),
        ("shakespeare-synthetic", 2, ParallelEngine),
        ("sent140-synthetic", 2, SparseEngine),
    ],
)
def test_each_task_gets_its_engine(name, workers, kind):
    assert type(engine_for(TASKS[name](), AVG, 0, workers)) is kind


def test_a_model_that_draws_random_numbers_stays_in_one_thread(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    noisy = make_task(model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    assert type(engine_for(noisy, AVG, 0, 2)) is SerialEngine
    assert type(engine_for(make_task(), AVG, 0, 2)) is ParallelEngine


def test_whole_runs_are_the_same_for_any_number_of_workers(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    task = make_task(clients=5, batch_size=4, clients_per_round=3)
    algorithm = fedgbo.FedGBO(fedgbo.Adam(lr=0.1, beta1=0.9))
    first, *others = (fedgbo.run(task, algorithm, rounds=4, workers=workers) for workers in (1, 2, 3))
    for other in others:
        assert torch.equal(first.params, other.params)
        assert [r.loss for r in first.history] == [r.loss for r in other.history]


def test_workers_are_counted_from_one():
    with pytest.raises(fedgbo.ConfigError, match="workers must be a whole number of at least 1"):
        fedgbo.run(make_task(), AVG, rounds=1, workers=0)
