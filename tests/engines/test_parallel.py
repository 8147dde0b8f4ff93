import threading

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.engines import serial
from fedgbo.engines.parallel import ParallelEngine
from fedgbo.engines.serial import SerialEngine, draws_random_numbers
from tests.algorithms.test_identities import example
from tests.conftest import make_task


@pytest.mark.parametrize("name", ["fedgbo", "fedmax", "mfl", "mimelite"])
def test_the_number_of_workers_does_not_change_a_bit(name, monkeypatch):
    monkeypatch.setattr(serial, "CHUNK", 7)
    task, algorithm = make_task(clients=7, batch_size=5, dtype=torch.float64), example(name)
    plain = SerialEngine(task, algorithm, seed=0)
    down = algorithm.broadcast(algorithm.init(plain.initial_params))
    cohort, steps = [6, 0, 3, 2, 5], [3, 1, 2, 4, 2]
    expected = plain.train(algorithm, down, cohort, steps, t=2)
    scores = plain.evaluate(plain.initial_params + 0.1)
    for workers in (1, 2, 3):
        engine = ParallelEngine(SerialEngine(task, algorithm, seed=0), algorithm, workers)
        for _ in range(3):
            got = engine.train(algorithm, down, cohort, steps, t=2)
            for key, value in expected.mean.tensors().items():
                assert torch.equal(got.mean.tensors()[key], value)
            assert (got.loss, got.samples, got.upload_bytes) == (expected.loss, expected.samples, expected.upload_bytes)
        assert engine.evaluate(plain.initial_params + 0.1) == scores


def test_an_error_on_one_client_is_raised_and_the_engine_goes_on():
    task = make_task(clients=5)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    engine = ParallelEngine(SerialEngine(task, algorithm, seed=0), algorithm, 2)
    down = algorithm.init(engine.initial_params)
    broken = fedgbo.State(torch.full_like(down.params, torch.nan))
    with pytest.raises(fedgbo.DivergenceError, match="client 0"):
        engine.train(algorithm, broken, range(5), [2] * 5, t=0)
    assert engine.train(algorithm, down, range(5), [2] * 5, t=0).loss > 0


def test_no_more_clients_are_begun_than_can_be_held():
    task = make_task(clients=40)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    engine = ParallelEngine(SerialEngine(task, algorithm, seed=0), algorithm, 2)
    lock, held, most = threading.Lock(), 0, 0

    def begin(model, item):
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return item

    for item in engine._each(begin, range(40)):
        assert item is not None
        with lock:
            held -= 1
    assert most <= 5


def test_dropout_is_noticed():
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    plain = SerialEngine(make_task(), algorithm, seed=0)
    assert not draws_random_numbers(plain.model, plain.sample)
    noisy = make_task(model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    plain = SerialEngine(noisy, algorithm, seed=0)
    assert draws_random_numbers(plain.model, plain.sample)
