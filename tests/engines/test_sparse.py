from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.schedule import at_round
from fedgbo.data.federated import FederatedData
from fedgbo.engines import sparse
from fedgbo.engines.select import engine_for
from fedgbo.engines.serial import SerialEngine
from fedgbo.engines.sparse import SparseEngine
from tests.engines.sparse_tasks import FEATURES, sparse_samples, sparse_task

SGD = fedgbo.SGD(1.0)
OPTIMISERS = [SGD, fedgbo.SGDm(1.0, 0.6), fedgbo.RMSProp(0.3, 0.9), fedgbo.Adam(0.3, 0.6)]
PULL = fedgbo.Proximal(0.3)
ALGORITHMS = [
    fedgbo.FedAvg(SGD),
    fedgbo.FedProx(SGD, 0.3),
    fedgbo.FedAvg(fedgbo.SGD(fedgbo.Exponential(1.0, 0.7))),
    *(fedgbo.AdaptiveFedOpt(SGD, optimiser) for optimiser in OPTIMISERS),
    *(fedgbo.FedGBO(optimiser) for optimiser in OPTIMISERS),
    *(fedgbo.FedGBO(optimiser, objective=PULL) for optimiser in OPTIMISERS),
    *(fedgbo.Mimelite(optimiser) for optimiser in OPTIMISERS),
    *(fedgbo.MimeXlite(optimiser) for optimiser in OPTIMISERS),
    fedgbo.Mimelite(OPTIMISERS[3], objective=[PULL, PULL]),
]


def unequal(t, client):
    return 1 + (3 * t + client) % 7


def trained(engine, algorithm, rounds=6, local_steps=unequal):
    """The round loop in small: server states, and results."""
    server = algorithm.init(engine.initial_params.clone())
    results = []
    for t in range(rounds):
        now, cohort = at_round(algorithm, t), [7, 1, 0, 4, 8]
        steps = [local_steps(t, c) for c in cohort]
        results.append(engine.train(now, now.broadcast(server), cohort, steps, t))
        server = now.server_update(server, results[-1].mean, results[-1].steps).to(server.params.dtype)
    return server, results


def both(task, algorithm):
    plain, fast = SerialEngine(task, algorithm, 3), engine_for(task, algorithm, 3)
    assert type(fast) is SparseEngine
    return plain, fast


def check_alike(plain, fast, algorithm, tolerance, **settings):
    expected, slow_results = trained(plain, algorithm, **settings)
    got, fast_results = trained(fast, algorithm, **settings)
    travelled = (expected.params - plain.initial_params).norm()
    assert (got.params - expected.params).norm() <= tolerance * travelled
    for name, stat in expected.stats.items():
        assert (got.stats[name] - stat).norm() <= 10 * tolerance * stat.norm()
    for quick, slow in zip(fast_results, slow_results, strict=True):
        assert quick.loss == pytest.approx(slow.loss, rel=tolerance)
        for count in ("steps", "samples", "download_bytes", "upload_bytes"):
            assert getattr(quick, count) == getattr(slow, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_whole_runs_are_the_plain_engines(algorithm, dtype, tolerance):
    for batch_size in (8, None):
        plain, fast = both(sparse_task(batch_size, dtype), algorithm)
        check_alike(plain, fast, algorithm, tolerance)
        check_alike(plain, fast, algorithm, tolerance, local_steps=lambda t, c: 4)


@pytest.mark.parametrize("algorithm", [ALGORITHMS[0], ALGORITHMS[-1]], ids=str)
def test_many_steps(algorithm):
    plain, fast = both(sparse_task(3, torch.float64), algorithm)
    check_alike(plain, fast, algorithm, 1e-9, rounds=2, local_steps=lambda t, c: 60 + c)


@pytest.mark.parametrize("algorithm", [fedgbo.FedAvg(SGD), fedgbo.FedGBO(OPTIMISERS[3], objective=PULL)], ids=str)
def test_the_same_bits_with_any_number_of_threads(algorithm, monkeypatch):
    monkeypatch.setattr(sparse, "WORTH_THREADS", 0)
    monkeypatch.setattr(sparse, "BLOCK", 4)
    task = sparse_task()
    plain = SerialEngine(task, algorithm, 0)
    first, _ = trained(SparseEngine(plain, workers=1), algorithm)
    for workers in (1, 2, 3, 7):
        again, _ = trained(SparseEngine(plain, workers=workers), algorithm)
        for name, tensor in first.tensors().items():
            assert torch.equal(again.tensors()[name], tensor)


def test_large_cohorts_in_blocks_and_in_any_order(monkeypatch):
    algorithm = fedgbo.FedGBO(OPTIMISERS[1])
    plain, fast = both(sparse_task(dtype=torch.float64), algorithm)
    down = algorithm.broadcast(algorithm.init(plain.initial_params))
    at_once = fast.train(algorithm, down, [0, 2, 5, 7, 8], [1, 2, 3, 4, 5], 0)
    shuffled = fast.train(algorithm, down, [7, 0, 8, 5, 2], [4, 1, 5, 3, 2], 0)
    assert torch.equal(shuffled.mean.params, at_once.mean.params)
    assert shuffled.loss == at_once.loss
    monkeypatch.setattr(sparse, "BLOCK", 2)
    in_blocks = fast.train(algorithm, down, [0, 2, 5, 7, 8], [1, 2, 3, 4, 5], 0)
    assert torch.equal(in_blocks.mean.params, at_once.mean.params)
    assert in_blocks.loss == at_once.loss


def test_a_run_goes_through_it_and_gives_the_same_bits_twice(monkeypatch):
    task, algorithm = sparse_task(), fedgbo.FedGBO(OPTIMISERS[1])
    first = fedgbo.run(task, algorithm, rounds=10, eval_every=2)
    again = fedgbo.run(task, algorithm, rounds=10, eval_every=2)
    assert torch.equal(first.params, again.params)
    monkeypatch.setattr(
        "fedgbo.runs.loop.engine_for", lambda task, algorithm, seed, *_: SerialEngine(task, algorithm, seed)
    )
    slow = fedgbo.run(task, algorithm, rounds=10, eval_every=2)
    assert torch.allclose(first.params, slow.params, rtol=1e-4, atol=1e-6)
    assert [r.accuracy for r in first.history] == pytest.approx([r.accuracy for r in slow.history])
    assert [r.loss for r in first.history] == pytest.approx([r.loss for r in slow.history], rel=1e-6)
    assert [r.flops for r in first.history] == [r.flops for r in slow.history]
    assert [r.counted_flops for r in first.history] == [r.counted_flops for r in slow.history]


def test_evaluation_in_chunks_and_with_a_metric_of_ones_own(monkeypatch):
    monkeypatch.setattr(sparse, "CHUNK", 7)
    for metric in (None, lambda outputs, targets: outputs.gather(1, targets[:, None]).mean()):
        plain, fast = both(sparse_task(metric=metric), ALGORITHMS[0])
        assert fast.evaluate(fast.initial_params) == pytest.approx(plain.evaluate(plain.initial_params), rel=1e-6)


def test_data_mapped_from_files_give_the_same_bits(tmp_path):
    task = sparse_task()
    train = task.data.train
    for name in ("indptr", "indices", "counts", "labels"):
        np.save(tmp_path / f"{name}.npy", getattr(train, name))
    mapped = type(train)(
        *(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices", "counts", "labels"))
    )
    data = FederatedData(mapped, task.data.offsets, task.data.test)
    other = fedgbo.Task("mapped", data, task.model, task.clients_per_round, task.batch_size)
    results = [trained(engine_for(t, ALGORITHMS[0], 0), ALGORITHMS[0])[0].params for t in (task, other)]
    assert torch.equal(*results)


def test_divergence_is_named():
    algorithm = fedgbo.FedAvg(fedgbo.SGD(1e308))
    _, fast = both(sparse_task(dtype=torch.float64), algorithm)
    with pytest.raises(fedgbo.DivergenceError, match=r"training loss of client \d is (inf|nan) in round 1"):
        trained(fast, algorithm)


@dataclass(frozen=True)
class Decayed(fedgbo.Optimiser):
    """Not of the form offset + scale · g."""

    def update(self, params, stats, grad):
        return params - 0.5 * (grad + 0.1 * params)


@dataclass(frozen=True)
class OwnAlgorithm(fedgbo.FederatedAlgorithm):
    """Says that it is affine, but asks for more than the mean of a cohort can answer."""

    question: object

    @property
    def affine(self):
        return True

    def client_update(self, down, client):
        return fedgbo.State(self.question(down.params, client))


@pytest.mark.parametrize(
    "question",
    [
        lambda x, client: x - client.descend(x, Decayed(), {}),
        lambda x, client: client.gradient(x) / client.steps,
        lambda x, client: client.full_gradient(x + 1),
        lambda x, client: client.gradient(client.descend(x, SGD, {})),
        lambda x, client: (x - client.descend(x, SGD, {})) + client.gradient(x),
        lambda x, client: x - client.descend(client.descend(x, SGD, {}), SGD, {}),
    ],
)
def test_what_a_mean_cannot_answer_is_asked_client_by_client(question):
    algorithm = OwnAlgorithm(question)
    plain, fast = both(sparse_task(), algorithm)
    assert torch.equal(trained(plain, algorithm)[0].params, trained(fast, algorithm)[0].params)


class Subclass(fedgbo.FedAvg):
    """Might do anything in client_update, and does not say whether that is affine."""


class OwnTerm(fedgbo.Proximal):
    """Might do anything."""


def hooked():
    model = sparse_task().model()
    model.register_forward_hook(lambda *_: None)
    return model


def frozen():
    model = sparse_task().model()
    model.bias.requires_grad_(False)
    return model


def with_data(train=None, offsets=None, test=None):
    data = sparse_task().data
    made = FederatedData(train or data.train, data.offsets if offsets is None else offsets, test or data.test)
    return fedgbo.Task("other", made, sparse_task().model, None, 8)


def with_arrays(**changed):
    train = sparse_task().data.train
    names = ("indptr", "indices", "counts", "labels")
    return with_data(train=type(train)(**{name: changed.get(name, getattr(train, name)) for name in names}))


def test_others_go_to_the_plain_engine():
    task, algorithm = sparse_task(), ALGORITHMS[0]
    data = task.data
    falling = data.train.indptr.copy()
    falling[3] = falling[4] + 1
    too_many = data.train.indices.copy()
    too_many[-1] = FEATURES
    cases = [
        (task, fedgbo.MFL(SGD)),
        (task, fedgbo.FedGBO(SGD, inverse=False)),
        (task, Subclass(SGD)),
        (task, fedgbo.FedAvg(SGD, objective=OwnTerm(0.1))),
        (sparse_task(model=hooked), algorithm),
        (sparse_task(model=frozen), algorithm),
        (sparse_task(model=lambda: nn.Sequential(task.model())), algorithm),
        (sparse_task(loss=lambda o, t: functional.cross_entropy(o, t, label_smoothing=0.1)), algorithm),
        (with_data(offsets=np.array([0, 5, 5, 9])), algorithm),
        (with_data(offsets=np.array([0, len(data.train) + 1])), algorithm),
        (with_arrays(indptr=falling), algorithm),
        (with_arrays(indices=too_many), algorithm),
        (with_arrays(counts=data.train.counts.astype(float)), algorithm),
        (with_data(test=type("Other", (type(data.test),), {})(**vars(sparse_samples(9, 2)))), algorithm),
    ]
    for case, one in cases:
        assert type(engine_for(case, one, 0)) is SerialEngine, (case, one)
    assert type(engine_for(with_data(), algorithm, 0)) is SparseEngine


def test_without_numba_the_plain_engine_does_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "numba", None)
    for name in [name for name in sys.modules if name.startswith("fedgbo.engines.sparse")]:
        monkeypatch.delitem(sys.modules, name)
    assert type(engine_for(sparse_task(), ALGORITHMS[0], 0)) is SerialEngine
