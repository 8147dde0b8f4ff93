"""Clients that wait halfway: no core idle at the end, and not a bit of difference."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedgbo
from fedgbo.engines.parallel import ParallelEngine
from fedgbo.engines.serial import SerialEngine, SimulatedClient, Work
from fedgbo.engines.turns import Cores, Turn, pauses
from tests.algorithms.test_identities import example
from tests.conftest import make_task


@given(clients=st.integers(1, 200), cores=st.integers(1, 16))
def test_the_cores_are_filled_evenly(clients, cores):
    """Those that may compute, in turn, on the first core that is free: all cores are done at once."""
    parts = pauses(clients, cores)
    if clients <= cores:
        assert parts == []
        return
    assert len(parts) < cores
    ends = [0.0] * cores

    def compute(work, not_before=0.0):
        core = ends.index(min(ends))
        ends[core] = max(ends[core], not_before) + work
        return ends[core]

    halfway = [(compute(part), part) for part in sorted(parts, reverse=True)]
    for _ in range(clients - len(parts)):
        compute(1.0)
    for begun, part in sorted(halfway, key=lambda client: client[1]):
        compute(1 - part, begun)
    assert max(ends) == pytest.approx(clients / cores)


def test_cores_are_given_in_turn():
    cores, order, ready = Cores(1), [], threading.Semaphore(0)
    cores.take(Turn.WHOLE)

    def compute(turn):
        ready.release()
        with cores.one(turn):
            order.append(turn)

    threads = []
    for turn in (Turn.AFTER, Turn.WHOLE, Turn.BEFORE, Turn.WHOLE):
        threads.append(threading.Thread(target=compute, args=(turn,)))
        threads[-1].start()
        ready.acquire()
    while len(cores._waiting) < 4:
        time.sleep(0.001)
    cores.give()
    for thread in threads:
        thread.join(10)
    assert order == [Turn.BEFORE, Turn.WHOLE, Turn.WHOLE, Turn.AFTER]


def five_on_two(name="fedavg", cohort=5):
    task = replace(make_task(clients=7, batch_size=5, dtype=torch.float64), clients_per_round=cohort)
    plain = SerialEngine(task, example(name), seed=0)
    return plain, ParallelEngine(SerialEngine(task, example(name), seed=0), example(name), workers=2)


@pytest.mark.parametrize("name", ["fedavg", "fedgbo", "fedprox", "mfl", "mimelite"])
@pytest.mark.parametrize("steps", [[4] * 5, [1] * 5, [3, 1, 2, 4, 2]])
def test_the_client_that_waits_gives_the_same_bits(name, steps):
    plain, engine = five_on_two(name)
    algorithm, waited = example(name), []
    engine._wait, wait = lambda: (waited.append(1), wait()), engine._wait
    down = algorithm.broadcast(algorithm.init(plain.initial_params))
    work = ([0, 2, 3, 5, 6], steps, 1)
    expected = plain.train(algorithm, down, *work)
    for rounds in (1, 2, 3):
        got = engine.train(algorithm, down, *work)
        assert (got.loss, got.samples) == (expected.loss, expected.samples)
        for key, value in expected.mean.tensors().items():
            assert torch.equal(got.mean.tensors()[key], value)
        assert len(waited) == rounds


@pytest.mark.parametrize(("clients", "workers"), [(5, 2), (10, 4)])
def test_the_odd_ones_take_no_time_of_their_own(clients, workers, monkeypatch):
    """One step sleeps for 40 ms here, as it lets go of Python's lock like torch's operations do."""
    task = replace(make_task(clients=clients, batch_size=5), clients_per_round=clients)
    plain = SerialEngine(task, example("fedavg"), seed=0)
    engine = ParallelEngine(plain, example("fedavg"), workers)
    monkeypatch.setattr(
        "fedgbo.engines.serial.SimulatedClient._step", lambda *_: (time.sleep(0.04), torch.zeros(()))[1]
    )
    took = []
    for _ in range(3):  # a busy machine sleeps longer
        began = time.perf_counter()
        engine.train(example("fedavg"), fedgbo.State(plain.initial_params), range(clients), [10] * clients, 0)
        took.append(time.perf_counter() - began)
    assert 0.99 < min(took) < 1.15  # 1.2 if cores were idle while the last ones are trained


@pytest.mark.parametrize("cohort", [2, 4, 7])
def test_cohorts_of_other_sizes_than_the_tasks(cohort):
    """An engine has models for the task's cohorts; others take their turns too."""
    plain, engine = five_on_two(cohort=4)
    assert engine._free.qsize() == 2
    algorithm, down = example("fedavg"), fedgbo.State(plain.initial_params)
    expected = plain.train(algorithm, down, range(cohort), [3] * cohort, 0)
    assert torch.equal(engine.train(algorithm, down, range(cohort), [3] * cohort, 0).mean.params, expected.mean.params)


def test_an_error_of_or_beside_the_client_that_waits_reaches_the_caller(monkeypatch):
    plain, engine = five_on_two()
    algorithm, down = example("fedavg"), fedgbo.State(plain.initial_params)
    right = engine.plain.train_client
    for bad in (4, 0):  # the one that waits, and one for which it waits

        def wrong(model, work, client, steps, pause=None, bad=bad):
            result = right(model, work, client, steps, pause)
            if client == bad:
                raise fedgbo.DivergenceError(f"client {client}")
            return result

        monkeypatch.setattr(engine.plain, "train_client", wrong)
        with pytest.raises(fedgbo.DivergenceError, match=f"client {bad}"):
            engine.train(algorithm, down, range(5), [3] * 5, 0)
        assert (engine._free.qsize(), engine._cores._free) == (3, 2)  # all are back
    monkeypatch.setattr(engine.plain, "train_client", right)
    assert engine.train(algorithm, down, range(5), [3] * 5, 0).loss > 0


def test_nobody_goes_on_when_the_caller_does_not(monkeypatch):
    """As after Ctrl-C, or an error in what is made of the results."""
    plain, engine = five_on_two()
    running, step = [], SimulatedClient._step

    def slow(self, rows, fixed):
        running.append(self)
        time.sleep(0.02)
        return step(self, rows, fixed)

    monkeypatch.setattr(SimulatedClient, "_step", slow)
    work = Work(example("fedavg"), fedgbo.State(plain.initial_params), 0)
    results = engine._clients(work, [(client, 6) for client in range(5)])
    next(results)
    results.close()
    done = len(running)
    assert (engine._free.qsize(), engine._cores._free) == (3, 2)
    time.sleep(0.1)
    assert len(running) == done
