"""Asynchronous runs on a virtual clock: against a reference, with exact inverses, resumed bit for bit."""

import heapq
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pytest
import torch

import fedgbo
from fedgbo.core import Workload
from tests.algorithms import family
from tests.algorithms.family import K, N, grad, sgd, task
from tests.conftest import make_task
from tests.examples import AFFINE, OPTIMISERS
from tests.runs.test_memory import Killed, kill_at

SECONDS = [1.01, 3.53, 0.43, 2.27, 9.11, 1.37]  # no two clients end at the same moment
ROUNDS = 12


@pytest.fixture
def clock(tmp_path):
    """Three clients at a time, a step for every two uploads, with given speeds."""
    file = tmp_path / "speeds.csv"
    file.write_text("client,seconds\n" + "".join(f"{i},{s}\n" for i, s in enumerate(SECONDS)))
    return fedgbo.Asynchronous(concurrency=3, buffer=2, max_staleness=3, trace=str(file))


def simulated(rounds, seed=0, concurrency=3, buffer=2, most=3):
    """Who arrives in each step, and the step from which they started: an event loop of its own."""
    draws, flying, steps, buffered, now, idle = 0, [], [], {}, 0.0, concurrency

    while len(steps) < rounds:
        rng, order = np.random.default_rng([seed, crc32(b"cohort"), len(steps), draws]), list(range(N))
        for i in range(N):
            j = rng.integers(i, N)
            order[i], order[j] = order[j], order[i]
        free = [i for i in order if i not in buffered and all(i != other for _, other, _ in flying)]
        for client in free[:idle]:
            heapq.heappush(flying, (now + SECONDS[client], client, len(steps)))
        draws += 1
        now, client, version = heapq.heappop(flying)
        idle = 1
        if len(steps) - version <= most:
            buffered[client] = version
        if len(buffered) == buffer:
            steps.append(dict(sorted(buffered.items())))
            buffered, draws = {}, 0
    return steps


def test_the_clock(clock):
    for t, arrived in enumerate(simulated(ROUNDS)):
        found = clock.arrivals(N, t)
        assert found.clients == list(arrived)
        assert found.staleness == [t - version for version in arrived.values()]
    assert max(max(clock.arrivals(N, t).staleness) for t in range(ROUNDS)) >= 2
    times = [clock.arrivals(N, t).seconds for t in range(ROUNDS)]
    assert times == sorted(times)
    assert clock.arrivals(N, 3) == fedgbo.Asynchronous(3, 2, 3, trace=clock.trace).arrivals(N, 3)


def start():
    return fedgbo.run(task(), fedgbo.FedAvg(family_sgd()), rounds=1, callbacks=[fedgbo.Progress.stop]).params.numpy()


def family_sgd():
    return fedgbo.SGD(family.LR)


def test_fedbuff(clock):
    xs = [start()]
    for t, arrived in enumerate(simulated(ROUNDS)):
        deltas = [(1 + t - v) ** -0.5 * (xs[v] - sgd(xs[v], i)) for i, v in arrived.items()]
        xs.append(xs[-1] - 0.7 * sum(deltas) / len(deltas))
    algorithm = fedgbo.FedBuff(fedgbo.FedAvg(family_sgd()), server_lr=0.7, max_staleness=3)
    found = fedgbo.run(task(), algorithm, rounds=ROUNDS, local_steps=K, sampler=clock).params.numpy()
    np.testing.assert_allclose(found, xs[-1], rtol=0, atol=1e-9)


def test_fedgbo_with_momentum(clock):
    """The gradients of all local steps of the buffer, each client's found with the momentum of its own version."""
    lr, beta, history = 0.2, 0.8, [(start(), np.zeros(15))]
    for t, arrived in enumerate(simulated(ROUNDS)):
        moved, total, steps = 0, 0, 0
        for i, v in arrived.items():
            x, m = history[v]
            y, weight = x, (1 + t - v) ** -0.5
            for _ in range(K[i]):
                g = grad(y, i)
                y, total = y - lr * (beta * m + (1 - beta) * g), total + weight * g
            moved, steps = moved + weight * (x - y), steps + weight * K[i]
        x, m = history[-1]
        history.append((x - moved / len(arrived), beta * m + (1 - beta) * total / steps))
    algorithm = fedgbo.FedBuff(fedgbo.FedGBO(fedgbo.SGDm(lr, beta)), max_staleness=3)
    result = fedgbo.run(task(), algorithm, rounds=ROUNDS, local_steps=K, sampler=clock)
    np.testing.assert_allclose(result.params.numpy(), history[-1][0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.state.stats["m"].numpy(), history[-1][1], rtol=0, atol=1e-9)


FALLING = {"falling": fedgbo.SGDm(lr=fedgbo.Exponential(0.3, 0.7), beta=0.9)}  # a late client has its round's rate


@pytest.mark.parametrize("name", [*AFFINE, *FALLING])
def test_inverting_version_by_version_is_sending_gradients(name, clock):
    results = [
        fedgbo.run(
            task(),
            fedgbo.FedBuff(fedgbo.FedGBO({**OPTIMISERS, **FALLING}[name], inverse=inverse), max_staleness=3),
            rounds=ROUNDS,
            local_steps=K,
            sampler=clock,
        )
        for inverse in (None, False)
    ]
    for key, vector in results[0].state.tensors().items():
        torch.testing.assert_close(results[1].state.tensors()[key], vector, rtol=1e-7, atol=1e-9)


BASES = {
    "fedavg": fedgbo.FedAvg(fedgbo.SGD(0.2)),
    "fedgbo": fedgbo.FedGBO(fedgbo.Adam(0.1, 0.9)),
    "scaffold": fedgbo.SCAFFOLD(fedgbo.SGD(0.2)),
    "fedadam": fedgbo.FedAdam(fedgbo.SGD(0.2), fedgbo.Adam(0.1, 0.9)),
}


@pytest.mark.parametrize("name", BASES)
def test_with_a_synchronous_sampler_it_is_the_base(name):
    small = make_task(clients=6, batch_size=4, clients_per_round=3, dtype=torch.float64)
    one, other = (fedgbo.run(small, a, rounds=4) for a in (BASES[name], fedgbo.FedBuff(BASES[name])))
    torch.testing.assert_close(one.params, other.params, rtol=1e-10, atol=1e-12)
    assert one.history[-1].upload_bytes == other.history[-1].upload_bytes
    assert one.history[-1].download_bytes == other.history[-1].download_bytes


@pytest.mark.parametrize("name", BASES)
def test_without_delay_and_with_the_cohort_as_buffer_it_is_synchronous(name):
    """All clients train at any time, take the same time, and are the buffer."""
    everyone = make_task(clients=6, batch_size=4, dtype=torch.float64)
    clock = fedgbo.Asynchronous(concurrency=6, buffer=6, max_staleness=0, spread=0.0)
    late = fedgbo.run(everyone, fedgbo.FedBuff(BASES[name], max_staleness=0), rounds=4, sampler=clock)
    torch.testing.assert_close(late.params, fedgbo.run(everyone, BASES[name], rounds=4).params, rtol=1e-10, atol=1e-12)
    assert [record.simulated_seconds for record in late.history] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 7])
def test_without_delay_a_random_cohort_is_that_of_the_synchronous_run(seed):
    some = make_task(clients=6, batch_size=4, clients_per_round=3, dtype=torch.float64)
    clock = fedgbo.Asynchronous(concurrency=3, buffer=3, max_staleness=0, spread=0.0)
    late = fedgbo.run(some, fedgbo.FedBuff(BASES["fedgbo"], max_staleness=0), rounds=5, seed=seed, sampler=clock)
    plain = fedgbo.run(some, BASES["fedgbo"], rounds=5, seed=seed)
    torch.testing.assert_close(late.params, plain.params, rtol=1e-10, atol=1e-12)


def test_arrivals_depend_on_the_seed_of_the_run(clock):
    def cohorts(seed):
        bound = clock.for_run(Workload(N, seed))
        return [bound.arrivals(N, t).clients for t in range(ROUNDS)]

    assert cohorts(0) == [list(arrived) for arrived in simulated(ROUNDS)]
    assert cohorts(2) == [list(arrived) for arrived in simulated(ROUNDS, seed=2)] != cohorts(0)


def test_weights_by_samples(clock):
    """Clients of different sizes and versions: each counts by its samples and its staleness."""
    samples = [len(part[0]) for part in family.CLIENTS]
    assert len(set(samples)) > 1
    xs = [start()]
    for t, arrived in enumerate(simulated(ROUNDS)):
        deltas = [samples[i] * (1 + t - v) ** -0.5 * (xs[v] - sgd(xs[v], i)) for i, v in arrived.items()]
        xs.append(xs[-1] - sum(deltas) / sum(samples[i] for i in arrived))
    algorithm = fedgbo.FedBuff(fedgbo.FedAvg(family_sgd()), max_staleness=3)
    found = fedgbo.run(task(), algorithm, rounds=ROUNDS, local_steps=K, sampler=clock, weights="samples")
    np.testing.assert_allclose(found.params.numpy(), xs[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("sampler", [fedgbo.Asynchronous(100, 50, available=0.5), fedgbo.Deadline(100, available=0.5)])
def test_many_clients_are_not_looked_at_one_by_one(sampler):
    """A round looks at about twice as many devices as it needs, of 100,000."""
    sampler.arrivals(100_000, 3)
    (clock,) = vars(sampler)["_clocks"].values()
    assert len(clock._devices) < 4000


@pytest.mark.parametrize("name", BASES)
def test_a_killed_run_is_resumed_bit_for_bit(name, tmp_path, clock):
    algorithm = fedgbo.FedBuff(BASES[name], max_staleness=3)
    more = {"rounds": 9, "eval_every": 2, "sampler": clock}
    small = make_task(clients=6, batch_size=4)
    whole = fedgbo.run(small, algorithm, workers=1, **more)
    with pytest.raises(Killed):
        fedgbo.run(small, algorithm, out=tmp_path / "cut", callbacks=[kill_at(5)], **more)
    again = {**more, "sampler": fedgbo.Asynchronous(3, 2, 3, trace=clock.trace)}
    resumed = fedgbo.run(small, algorithm, out=tmp_path / "cut", resume=True, workers=2, **again)
    assert all(torch.equal(resumed.state.tensors()[key], x) for key, x in whole.state.tensors().items())


def test_deadlines(clock):
    slowest_first = sorted(range(N), key=lambda i: -SECONDS[i])
    sampler = fedgbo.Deadline(clients_per_round=2, over_select=4, trace=clock.trace)
    rng = np.random.default_rng(0)
    assert sampler.sample(N, 0, rng) == sorted(slowest_first[-2:])
    late = fedgbo.Deadline(clients_per_round=6, seconds=2.0, trace=clock.trace)
    assert late.sample(N, 0, rng) == [0, 2, 5]
    nobody = fedgbo.Deadline(clients_per_round=2, seconds=0.1, trace=clock.trace)
    small = make_task(clients=6)
    result = fedgbo.run(small, fedgbo.FedAvg(fedgbo.SGD(0.1)), rounds=2, sampler=nobody)
    assert result.history[-1].upload_bytes == 0
    assert "no client took part since the previous evaluation" in result.history[-1].note


def test_partial_clients(clock):
    """With 2 seconds of the time that they need, clients take a part of ten local steps."""
    sampler = fedgbo.Deadline(clients_per_round=6, seconds=2.0, partial=True, trace=clock.trace)
    steps = [10, 5, 10, 8, 2, 10]
    assert sampler.steps(range(N), [10] * N) == steps
    small = make_task(clients=6, batch_size=4)
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9))
    late = fedgbo.run(small, algorithm, rounds=3, local_steps=10, sampler=sampler)
    assert torch.equal(late.params, fedgbo.run(small, algorithm, rounds=3, local_steps=steps).params)


def test_speeds_without_a_trace_stay_the_same():
    one, other = (fedgbo.Asynchronous(3, 2, seed=seed).arrivals(50, 20).seconds for seed in (1, 1))
    assert one == other
    assert one != fedgbo.Asynchronous(3, 2, seed=2).arrivals(50, 20).seconds


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.FedBuff("fedavg"), "FedBuff: base must be an algorithm, not 'fedavg'"),
        (lambda: fedgbo.FedBuff(fedgbo.Mime(fedgbo.SGD(0.1))), "base must be an algorithm with one exchange per round"),
        (lambda: fedgbo.FedBuff(BASES["fedavg"], server_lr=0), "server_lr must be a finite number above 0"),
        (lambda: fedgbo.FedBuff(BASES["fedavg"], exponent=-1), "exponent must be a finite number of at least 0"),
        (
            lambda: fedgbo.FedBuff(BASES["fedavg"], max_staleness=-1),
            "max_staleness must be a whole number",
        ),
        (lambda: fedgbo.Asynchronous(0, 2), "concurrency must be a whole number of at least 1"),
        (lambda: fedgbo.Asynchronous(2, 0), "buffer must be a whole number of at least 1"),
        (
            lambda: fedgbo.Asynchronous(4, 8).arrivals(6, 0),
            "concurrency or buffer is 8, but there are 6 clients",
        ),
        (lambda: fedgbo.Deadline(2, over_select=-1), "over_select must be a whole number of at least 0"),
        (lambda: fedgbo.Deadline(2, seconds=0), "seconds must be a finite number above 0"),
        (lambda: fedgbo.Deadline(4, 4).sample(6, 0, None), "clients_per_round and over_select are 8 in all, but there"),
        (
            lambda: fedgbo.Deadline(2, trace="none.csv").sample(6, 0, np.random.default_rng(0)),
            "the trace none.csv cannot be read: .*No such file",
        ),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()


def test_bad_traces_and_bad_pairs(tmp_path, clock):
    (tmp_path / "short.csv").write_text("client,seconds\n0,1.0\n")
    with pytest.raises(fedgbo.ConfigError, match="has no row for client 1; it needs one for every client"):
        fedgbo.Asynchronous(3, 2, trace=str(tmp_path / "short.csv")).arrivals(N, 0)
    with pytest.raises(fedgbo.ConfigError, match=r"FedAvg keeps no earlier server states.*wrap it: FedBuff\(FedAvg"):
        fedgbo.run(make_task(clients=6), BASES["fedavg"], rounds=9, sampler=clock)
    with pytest.raises(fedgbo.ConfigError, match=r"may be 3 server updates late; use FedBuff\(max_staleness=3\)"):
        fedgbo.run(make_task(clients=6), fedgbo.FedBuff(BASES["fedavg"], max_staleness=1), rounds=1, sampler=clock)
    with pytest.raises(fedgbo.ConfigError, match="Asynchronous and Median cannot be combined: uploads of clients"):
        fedgbo.run(
            make_task(clients=6), fedgbo.FedBuff(BASES["fedavg"]), rounds=1, sampler=clock, aggregator=fedgbo.Median()
        )

    class Late(fedgbo.Sampler):
        """The user's own: it does not say at the start that clients are late."""

        def sample(self, clients, t, rng):
            return [0, 1]

        def staleness(self, clients, t):
            return [0, min(t, 1)]

    with pytest.raises(fedgbo.ConfigError, match="Late and Median cannot be combined"):
        fedgbo.run(
            make_task(clients=6), fedgbo.FedBuff(BASES["fedavg"]), rounds=2, sampler=Late(), aggregator=fedgbo.Median()
        )
    with pytest.raises(fedgbo.ConfigError, match="trace already has all speeds and times; leave out spread, seed"):
        fedgbo.Asynchronous(3, 2, trace=clock.trace, spread=0.1, seed=1)


def trace(folder, text, **more):
    """A sampler with a trace that has this text."""
    file = folder / "trace.csv"
    file.write_text(text)
    return fedgbo.Deadline(**{"clients_per_round": 2, **more}, trace=str(file))


def times(sampler, task, rounds, **more):
    """The simulated seconds of each round of a run with FedAvg."""
    result = fedgbo.run(task, BASES["fedavg"], rounds=rounds, eval_every=1, sampler=sampler, **more)
    return [record.simulated_seconds for record in result.history]


def test_time_by_work_and_bytes(tmp_path):
    """5 local steps on 4 samples at 0.1 s, and 26 float32 numbers down and up at 104 bytes a second: 2 + 2 seconds."""
    small = make_task(clients=2, batch_size=4)
    text = "client,seconds_per_sample,bandwidth\n0,0.1,104\n1,0.05,1000\n"
    assert times(trace(tmp_path, text), small, 3, local_steps=5) == pytest.approx([0, 4, 8, 12])
    assert times(None, small, 1) == [None, None]
    one = times(fedgbo.Deadline(2, seconds_per_sample=0.1, spread=0.0, bandwidth=104.0), small, 1, local_steps=5)
    assert one == pytest.approx([0, 4])


def test_time_of_other_work(tmp_path):
    """Mimelite's gradient on all 12 samples, and two vectors each way; full batches; FedSAM's second gradient."""
    sampler = trace(tmp_path, "client,seconds_per_sample,bandwidth\n0,1,208\n1,1,208\n")
    settings = {"rounds": 1, "local_steps": 5, "sampler": sampler}
    mimelite = fedgbo.run(make_task(clients=2, batch_size=4), fedgbo.Mimelite(fedgbo.SGDm(0.1, 0.9)), **settings)
    assert mimelite.history[-1].simulated_seconds == pytest.approx(5 * 4 + 12 + 2)
    sam = fedgbo.run(make_task(clients=2), fedgbo.FedSAM(fedgbo.SGD(0.1), 0.1), **settings)
    assert sam.history[-1].simulated_seconds == pytest.approx(2 * 5 * 12 + 1)


@dataclass(frozen=True)
class NeedsItsData(fedgbo.FedAvg):
    def client_update(self, down, client):
        if client.samples != make_task().data.size(client.id):
            raise LookupError("whose data are these?")
        return super().client_update(down, client)


@pytest.mark.parametrize("rate", [{"seconds_per_sample": 0.1}, {"bandwidth": 1e6}])
def test_an_algorithm_that_fails_on_a_client_without_data(rate):
    algorithm = NeedsItsData(fedgbo.SGD(0.1))
    fedgbo.run(make_task(), algorithm, rounds=1, sampler=fedgbo.Deadline(2))
    message = "NeedsItsData computes and sends on a client without data, where it fails: LookupError: whose data"
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(make_task(), algorithm, rounds=1, sampler=fedgbo.Deadline(2, **rate))


def test_availability(tmp_path):
    """Client 0 is always on; client 1 from 3 to 6 s of every 10 s, and needs 2 s; client 2 is on 4 s, and needs 5."""
    text = "client,seconds,on,off\n0,1,,\n1,2,3,6\n2,5,0,4\n"
    sampler = trace(tmp_path, text, clients_per_round=3, period=10.0)
    found = [sampler.arrivals(3, t) for t in range(8)]
    assert [arrived.clients for arrived in found] == [[0], [0, 1], [0], [0], [0], [0], [0], [0, 1]]
    assert [arrived.seconds for arrived in found] == [4, 6, 7, 8, 9, 10, 14, 16]


def test_nobody_is_on_at_first(tmp_path):
    sampler = trace(tmp_path, "client,seconds,on,off\n0,1,5,7\n1,1,6,9\n", clients_per_round=1)
    assert sampler.arrivals(2, 0) == ([0], [0], 6)
    with pytest.raises(fedgbo.ConfigError, match="after 9 s of virtual time no client is available long enough"):
        sampler.arrivals(2, 9)
    late = fedgbo.Asynchronous(1, 1, trace=sampler.trace, period=10.0)
    assert [late.arrivals(2, t).seconds for t in range(2)] == [6, 7]
    never = trace(tmp_path, "client,seconds,on,off\n0,3,0,2\n1,3,0,2\n")
    with pytest.raises(fedgbo.ConfigError, match="no client is available long enough"):
        fedgbo.Asynchronous(1, 1, trace=never.trace, period=4.0).arrivals(2, 0)


def test_the_random_model_of_availability():
    """A quarter of the clients is on at any time; with the same seed it is the same quarter."""
    clock = fedgbo.Deadline(200, available=0.25, period=100.0, spread=0.0)
    sizes = [len(clock.arrivals(200, t).clients) for t in range(20)]
    assert 30 < np.mean(sizes) < 65
    assert clock.arrivals(200, 19) == fedgbo.Deadline(200, available=0.25, period=100.0, spread=0.0).arrivals(200, 19)


def test_a_deadline_ends_the_round(tmp_path):
    text = "client,seconds\n0,1\n1,2\n2,9\n"
    assert trace(tmp_path, text, clients_per_round=3, seconds=4.0).arrivals(3, 1) == ([0, 1], [0, 0], 8)
    assert trace(tmp_path, text, clients_per_round=2, over_select=1).arrivals(3, 1) == ([0, 1], [0, 0], 4)
    part = trace(tmp_path, text, clients_per_round=3, seconds=4.0, partial=True)
    assert times(part, make_task(clients=3), 1, local_steps=9) == [0, 4]
    assert part.arrivals(3, 0) == ([0, 1], [0, 0], 4)  # a single local step of client 2 takes 9 s
    slow = trace(
        tmp_path, f"{text[:14]},bandwidth\n0,1,1\n1,2,1e9\n2,9,1e9\n", clients_per_round=3, seconds=4.0, partial=True
    )
    work = Workload(3, steps=lambda client, t: 9, nbytes=lambda: 5)
    assert slow.for_run(work).arrivals(3, 0) == ([1, 2], [0, 0], 4)  # what client 0 sends takes 5 s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line of the trace .* must name its columns"),
        ("client,speed\n0,1\n", "must name its columns: client, seconds or seconds_per_sample.*'client,speed'"),
        ("client,seconds\n0,fast\n", "line 2: seconds must be a number above 0, not 'fast'"),
        ("client,seconds\n0,1\n1,-2\n", "line 3: seconds must be a number above 0, not '-2'"),
        ("client,seconds\n0,1,5\n", "line 2: 3 cells, but there are 2 columns"),
        ("client,seconds\n0.5,1\n", "line 2: client must be a whole number of at least 0"),
        ("client,bandwidth\n0,1\n1,1\n", "neither seconds nor seconds_per_sample for client 0"),
        ("client,seconds,on,off\n0,1,5,3\n", "line 2: on and off must be numbers of seconds with 0 <= on < off"),
        ("client,seconds,on,off\n0,1,5,\n", "line 2: on and off must be numbers"),
        ("client,seconds,on,off\n0,1,1,5\n0,1,4,6\n1,1,,\n", "overlapping times of availability for client 0"),
        ("client,seconds,on,off\n0,1,1,5\n0,1,,\n1,1,,\n", "line 3: client 0 has on and off in some lines only"),
        ("client,seconds,on,off\n0,1,1,5\n0,2,6,7\n", "line 3: client 0 has another seconds in an earlier line"),
    ],
)
def test_bad_trace_files(tmp_path, text, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        trace(tmp_path, text).arrivals(2, 0)


def test_a_trace_from_a_spreadsheet(tmp_path):
    sampler = trace(tmp_path, "\ufeffclient,seconds\n0,1\n1,2\n \n\n")
    assert sampler.arrivals(2, 0) == ([0, 1], [0, 0], 2)


def test_a_run_is_not_resumed_with_another_trace(tmp_path):
    sampler, small = trace(tmp_path, "client,seconds\n0,1\n1,2\n"), make_task(clients=2)
    more = {"sampler": sampler, "out": tmp_path / "run"}
    fedgbo.run(small, BASES["fedavg"], rounds=1, **more)
    trace(tmp_path, "client,seconds\n0,1\n1,3\n")
    with pytest.raises(fedgbo.RunFolderError, match="the trace of its sampler has changed since it was started"):
        fedgbo.run(small, BASES["fedavg"], rounds=2, resume=True, **more)
