"""Several clients at once, some of which pause halfway: no core idle at the end, and not a bit of difference."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedgbo
from fedgbo.engines import evaluate
from fedgbo.engines.client import SimulatedClient
from fedgbo.engines.plain import InPlace, PlainEngine
from fedgbo.engines.threads import Cores, ThreadedEngine, Turn, pauses
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES, States, numbers, round_of, train, vectors

AVG = EXAMPLES["fedavg"]


def threaded(task, algorithm, workers):
    """Return an engine with threads and, apart from it, the engine that it must agree with."""
    plain, other = (PlainEngine(task, algorithm, 0, descent=InPlace()) for _ in range(2))
    return ThreadedEngine(plain, algorithm, workers, task.cohort_size), other


def same(got, expected):
    assert numbers(got) == numbers(expected)
    assert vectors(got).keys() == vectors(expected).keys()
    assert all(torch.equal(vectors(got)[key], value) for key, value in vectors(expected).items())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_number_of_workers_does_not_change_a_bit(name, monkeypatch):
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    task, algorithm = make_task(clients=7, batch_size=5, dtype=torch.float64), EXAMPLES[name]
    for workers in (1, 2, 3):
        engine, plain = threaded(task, algorithm, workers)
        states, expected_states = States(), States()
        down = algorithm.broadcast(algorithm.init(plain.origin.params))
        for t in range(3):
            work = ([0, 2, 3, 5, 6], [3, 1, 2, 4, 2], t)
            expected = train(plain, algorithm, *work, down=down, states=expected_states)
            same(train(engine, algorithm, *work, down=down, states=states), expected)
        for client, kept in expected_states.kept.items():
            assert all(torch.equal(states.kept[client][key], value) for key, value in kept.items())
        assert (len(states.kept) == 5) == bool(algorithm.client_state(plain.origin.params))
        moved = fedgbo.State(plain.origin.params + 0.1)
        assert engine.evaluate(moved) == plain.evaluate(moved)


@pytest.mark.parametrize("name", ["fedgbo", "scaffold", "mfl"])
def test_whole_runs_are_the_same_for_any_number_of_workers(name, monkeypatch):
    monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    task = make_task(clients=5, batch_size=4, clients_per_round=3)
    first, *others = (fedgbo.run(task, EXAMPLES[name], rounds=4, workers=workers) for workers in (1, 2, 3))
    for other in others:
        assert all(torch.equal(other.state.tensors()[key], x) for key, x in first.state.tensors().items())
        assert [r.loss for r in first.history] == [r.loss for r in other.history]


def test_an_error_on_one_client_is_raised_and_the_engine_goes_on():
    engine, _ = threaded(make_task(clients=5), AVG, 2)
    broken = fedgbo.State(torch.full_like(engine.origin.params, torch.nan))
    with pytest.raises(fedgbo.DivergenceError, match="client 0"):
        train(engine, AVG, range(5), [2] * 5, down=broken)
    assert train(engine, AVG, range(5), [2] * 5).loss > 0


def test_no_more_clients_are_begun_than_can_be_held():
    engine, _ = threaded(make_task(clients=40), AVG, 2)
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
    assert not PlainEngine(make_task(), AVG, 0).draws
    noisy = make_task(model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    assert PlainEngine(noisy, AVG, 0).draws


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
    return threaded(task, EXAMPLES[name], workers=2)


@pytest.mark.parametrize("name", ["fedavg", "fedgbo", "fedprox", "mfl", "mimelite", "scaffold"])
@pytest.mark.parametrize("steps", [[4] * 5, [1] * 5, [3, 1, 2, 4, 2]])
def test_the_client_that_pauses_gives_the_same_bits(name, steps):
    engine, plain = five_on_two(name)
    waited, engine.plain.watched = [], True
    engine._wait, wait = lambda: (waited.append(1), wait()), engine._wait
    expected = train(plain, EXAMPLES[name], [0, 2, 3, 5, 6], steps, 1)
    for rounds in (1, 2, 3):
        same(train(engine, EXAMPLES[name], [0, 2, 3, 5, 6], steps, 1), expected)
        assert len(waited) == rounds


@pytest.mark.parametrize(("clients", "workers"), [(5, 2), (10, 4)])
def test_the_odd_ones_take_no_time_of_their_own(clients, workers, monkeypatch):
    """A local step sleeps for 40 ms here: it releases Python's lock, as torch's operations do."""
    task = replace(make_task(clients=clients, batch_size=5), clients_per_round=clients)
    engine, _ = threaded(task, AVG, workers)
    engine.plain.watched = True
    monkeypatch.setattr(SimulatedClient, "step", lambda *_: (time.sleep(0.04), torch.zeros(()))[1])
    took = []
    for _ in range(3):  # a busy machine sleeps longer
        began = time.perf_counter()
        train(engine, AVG, range(clients), [10] * clients)
        took.append(time.perf_counter() - began)
    assert 0.99 < min(took) < 1.15  # 1.2 if cores were idle while the last ones are trained


@pytest.mark.parametrize("cohort", [1, 2, 4, 7])
def test_cohorts_of_other_sizes_than_the_tasks(cohort):
    """An engine has models for the task's cohorts; others take their turns too."""
    engine, plain = five_on_two(cohort=4)
    assert engine._free.qsize() == 2
    same(train(engine, AVG, range(cohort), [3] * cohort), train(plain, AVG, range(cohort), [3] * cohort))


def test_an_error_of_or_beside_the_client_that_pauses_reaches_the_caller(monkeypatch):
    engine, _ = five_on_two()
    right = engine.plain.train_client
    for bad in (4, 0):  # the one that pauses, and one for which it pauses

        def wrong(model, work, client, steps, pause=None, bad=bad):
            result = right(model, work, client, steps, pause)
            if client == bad:
                raise fedgbo.DivergenceError(f"client {client}")
            return result

        monkeypatch.setattr(engine.plain, "train_client", wrong)
        with pytest.raises(fedgbo.DivergenceError, match=f"client {bad}"):
            train(engine, AVG, range(5), [3] * 5)
        assert (engine._free.qsize(), engine._cores._free) == (3, 2)  # all are back
    monkeypatch.setattr(engine.plain, "train_client", right)
    assert train(engine, AVG, range(5), [3] * 5).loss > 0


def test_no_client_goes_on_when_the_caller_does_not(monkeypatch):
    """As after Ctrl-C, or an error in the aggregator."""
    engine, _ = five_on_two()
    running, step = [], SimulatedClient.step

    def slow(self, batch, how):
        running.append(self)
        time.sleep(0.02)
        return step(self, batch, how)

    monkeypatch.setattr(SimulatedClient, "step", slow)
    uploads = engine.uploads(round_of(engine, AVG, range(5), [6] * 5), [(client, 6) for client in range(5)])
    assert next(uploads).client == 0
    uploads.close()
    done = len(running)
    assert done >= 6
    assert (engine._free.qsize(), engine._cores._free) == (3, 2)
    time.sleep(0.1)
    assert len(running) == done
