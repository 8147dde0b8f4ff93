"""All local steps of a sparse linear model in one C call, against the textbook engine."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.schedule import at_round
from fedgbo.data.federated import FederatedData
from fedgbo.engines import one_call as sparse
from fedgbo.engines.one_call import SparseDescent
from fedgbo.engines.select import engine_for
from fedgbo.native import library
from tests.engines.rounds import EXAMPLES, States, client_of, numbers, train, vectors
from tests.engines.sparse_tasks import FEATURES, sparse_samples, sparse_task

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler: there is no such call")
SGD = fedgbo.SGD(1.0)
OPTIMISERS = [SGD, fedgbo.SGDm(1.0, 0.6), fedgbo.RMSProp(0.3, 0.9), fedgbo.Adam(0.3, 0.6)]
PULL = fedgbo.Proximal(0.3)
ALGORITHMS = [
    fedgbo.FedAvg(SGD),
    fedgbo.FedProx(SGD, 0.3),
    fedgbo.FedAvg(fedgbo.SGD(fedgbo.Exponential(1.0, 0.7))),
    fedgbo.SCAFFOLD(SGD),
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
    """The round loop in small: server states, and what the rounds gave."""
    server, states, rounds_gave = algorithm.init(engine.origin.params.clone()), States(), []
    for t in range(rounds):
        now, cohort = at_round(algorithm, t), [0, 1, 4, 7, 8]
        steps = [local_steps(t, c) for c in cohort]
        rounds_gave.append(train(engine, now, cohort, steps, t, down=now.broadcast(server), states=states))
        server = now.server_update(server, rounds_gave[-1].mean, rounds_gave[-1].steps)
    return server, rounds_gave


def both(task, algorithm):
    textbook, fast = (engine_for(task, algorithm, 3, engine=name) for name in ("plain", "auto"))
    assert textbook.descent is None
    assert type(fast.descent) is SparseDescent
    return textbook, fast


def check_alike(textbook, fast, algorithm, tolerance, **settings):
    expected, slow_rounds = trained(textbook, algorithm, **settings)
    got, fast_rounds = trained(fast, algorithm, **settings)
    travelled = (expected.params - textbook.origin.params).norm()
    assert travelled > 0
    assert (got.params - expected.params).norm() <= tolerance * travelled
    for name, stat in expected.stats.items():
        assert (got.stats[name] - stat).norm() <= 10 * tolerance * stat.norm()
    for quick, slow in zip(fast_rounds, slow_rounds, strict=True):
        assert numbers(quick) == numbers(slow) | {"loss": pytest.approx(slow.loss, rel=tolerance)}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_whole_runs_are_the_textbook_engines(algorithm, dtype, tolerance):
    textbook, fast = both(sparse_task(8, dtype), algorithm)
    check_alike(textbook, fast, algorithm, tolerance)
    check_alike(textbook, fast, algorithm, tolerance, local_steps=lambda t, c: 4)


@pytest.mark.parametrize("algorithm", [ALGORITHMS[0], ALGORITHMS[-1]], ids=str)
def test_many_steps(algorithm):
    textbook, fast = both(sparse_task(3, torch.float64), algorithm)
    check_alike(textbook, fast, algorithm, 1e-9, rounds=2, local_steps=lambda t, c: 60 + c)


def test_a_run_goes_through_it_and_gives_the_same_bits_twice():
    task, algorithm = sparse_task(), fedgbo.FedGBO(OPTIMISERS[1])
    settings = {"rounds": 10, "eval_every": 2}
    first, again = (fedgbo.run(task, algorithm, **settings, workers=workers) for workers in (1, 3))
    assert torch.equal(first.params, again.params)
    slow = fedgbo.run(task, algorithm, **settings, engine="plain")
    assert not torch.equal(first.params, slow.params)  # another order of additions
    assert torch.allclose(first.params, slow.params, rtol=1e-4, atol=1e-6)
    assert [r.accuracy for r in first.history] == pytest.approx([r.accuracy for r in slow.history])
    assert [r.loss for r in first.history] == pytest.approx([r.loss for r in slow.history], rel=1e-6)
    assert [r.flops for r in first.history] == [r.flops for r in slow.history]
    assert [r.counted_flops for r in first.history] == [r.counted_flops for r in slow.history]


def test_evaluation_in_chunks_and_with_a_metric_of_ones_own(monkeypatch):
    def scores():
        return [
            engine.evaluate(fedgbo.State(engine.origin.params)).test for engine in both(sparse_task(), ALGORITHMS[0])
        ]

    whole = scores()
    monkeypatch.setattr("fedgbo.engines.evaluate.CHUNK", 7)
    in_chunks = scores()
    assert all(scores == pytest.approx(whole[0], rel=1e-6) for scores in [*whole, *in_chunks])
    own = lambda outputs, targets: outputs.gather(1, targets[:, None]).mean()  # noqa: E731
    textbook, fast = both(sparse_task(metric=own), ALGORITHMS[0])
    start = fedgbo.State(fast.origin.params)
    assert fast.evaluate(start).test == pytest.approx(textbook.evaluate(start).test, rel=1e-6)


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


def test_samples_whose_counts_are_all_zero():
    counts = sparse_task().data.train.counts.copy()
    counts[: len(counts) // 2] = 0
    textbook, fast = both(with_arrays(counts=counts), ALGORITHMS[0])
    check_alike(textbook, fast, ALGORITHMS[0], 1e-5)


def test_divergence_is_named():
    algorithm = fedgbo.FedAvg(fedgbo.SGD(1e308))
    _, fast = both(sparse_task(dtype=torch.float64), algorithm)
    with pytest.raises(fedgbo.DivergenceError, match=r"training loss of client \d is (inf|nan) in round 1"):
        trained(fast, algorithm)


def test_after_descend_the_last_minibatch_is_that_of_its_last_step():
    engines = both(sparse_task(dtype=torch.float64), ALGORITHMS[0])
    clients = [client_of(engine, ALGORITHMS[0], client=4, steps=3) for engine in engines]
    x = engines[0].origin.params.clone()
    for client in clients:
        client.descend(x, SGD, {})
    slow, quick = (client.gradient(x, again=True) for client in clients)
    assert torch.allclose(quick, slow, rtol=1e-12)
    assert [client.gradients for client in clients] == [4 * 8] * 2


def test_parameters_of_another_type_or_length():
    engine = both(sparse_task(), fedgbo.FedProx(SGD, 0.3))[1]
    x = engine.origin.params.clone()
    moved = client_of(engine, fedgbo.FedProx(SGD, 0.3), steps=3).descend(x.double(), SGD, {})
    assert torch.equal(moved, client_of(engine, fedgbo.FedProx(SGD, 0.3), steps=3).descend(x, SGD, {}))
    with pytest.raises(RuntimeError, match="size"):
        client_of(engine, ALGORITHMS[0]).descend(x[:-1], SGD, {})


@dataclass(frozen=True)
class Decayed(fedgbo.Optimiser):
    """Not affine in the gradient alone."""

    def update(self, params, stats, grad):
        return params - 0.5 * (grad + 0.1 * params)


@dataclass(frozen=True)
class Asks(fedgbo.FederatedAlgorithm):
    """Uploads what a question about a client gives."""

    question: object

    def client_update(self, down, client):
        return fedgbo.State(self.question(down.params, client))


class OwnTerm(fedgbo.Proximal):
    """May compute anything."""


@pytest.mark.parametrize(
    "question",
    [
        lambda x, client: x - client.descend(x, Decayed(), {}),
        lambda x, client: client.gradient(x) / client.steps,
        lambda x, client: client.full_gradient(x + 1),
    ],
)
def test_what_the_c_code_cannot_do_has_the_textbook_loops_bits(question):
    algorithm = Asks(question)
    textbook, fast = both(sparse_task(), algorithm)
    assert torch.equal(trained(textbook, algorithm)[0].params, trained(fast, algorithm)[0].params)


def test_a_term_of_ones_own_has_the_textbook_loops_bits():
    algorithm = fedgbo.FedAvg(SGD, objective=OwnTerm(0.1))
    textbook, fast = (engine_for(sparse_task(), algorithm, 3, engine=name) for name in ("plain", "auto"))
    assert textbook.descent is None
    assert fast.descent is None
    assert torch.equal(trained(textbook, algorithm)[0].params, trained(fast, algorithm)[0].params)


@pytest.mark.parametrize(
    "question",
    [
        lambda x, client: client.gradient(client.descend(x, SGD, {})),
        lambda x, client: (x - client.descend(x, SGD, {})) + client.gradient(x),
        lambda x, client: x - client.descend(client.descend(x, SGD, {}), SGD, {}),
    ],
)
def test_a_descent_among_other_questions(question):
    """The minibatches go on where the C code left off."""
    algorithm = Asks(question)
    check_alike(*both(sparse_task(dtype=torch.float64), algorithm), algorithm, 1e-9)


def hooked():
    model = sparse_task().model()
    model.register_forward_hook(lambda *_: None)
    return model


def frozen():
    model = sparse_task().model()
    model.bias.requires_grad_(False)
    return model


def with_data(train=None, offsets=None):
    data = sparse_task().data
    made = FederatedData(train or data.train, data.offsets if offsets is None else offsets, data.test)
    return fedgbo.Task("other", made, sparse_task().model, None, 8)


def with_arrays(**changed):
    train = sparse_task().data.train
    names = ("indptr", "indices", "counts", "labels")
    return with_data(train=type(train)(**{name: changed.get(name, getattr(train, name)) for name in names}))


def descent(task):
    return type(engine_for(task, ALGORITHMS[0], 0).descent).__name__


def test_other_models_losses_and_data_take_their_steps_in_place(monkeypatch):
    task = sparse_task()
    data = task.data
    falling = data.train.indptr.copy()
    falling[3] = falling[4] + 1
    too_many = data.train.indices.copy()
    too_many[slice(*data.train.indptr[[4, 8]])] = FEATURES  # of rows that are not tried before the first round
    cases = {
        "hooked": sparse_task(model=hooked),
        "frozen": sparse_task(model=frozen),
        "wrapped": sparse_task(model=lambda: nn.Sequential(task.model())),
        "loss": sparse_task(loss=lambda o, t: functional.cross_entropy(o, t, label_smoothing=0.1)),
        "no batch size": sparse_task(None),
        "too few samples": with_data(offsets=np.array([0, len(data.train) + 1])),
        "falling offsets": with_data(offsets=np.array([0, 9, 5, 12])),
        "falling rows": with_arrays(indptr=falling),
        "unknown feature": with_arrays(indices=too_many),
        "counts of floats": with_arrays(counts=data.train.counts.astype(float)),
        "own samples": with_data(train=type("Own", (type(data.train),), {})(**vars(sparse_samples(200, 2)))),
    }
    assert {name: descent(case) for name, case in cases.items()} == dict.fromkeys(cases, "InPlace")
    assert descent(with_data()) == "SparseDescent"
    monkeypatch.setattr(sparse, "library", lambda: None)
    assert descent(task) == "InPlace"


def test_a_model_of_other_numbers_takes_its_steps_in_place():
    model = lambda: sparse_task().model().bfloat16()  # noqa: E731
    assert sparse.sparse_descent(sparse_task(), model()) is None


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"fedmax", "fedsam", "mofedsam"}))  # by the textbook
def test_every_algorithm_agrees_with_the_textbook_loop(name):
    task, algorithm = sparse_task(dtype=torch.float64), EXAMPLES[name]
    results = [train(engine, algorithm, [0, 3, 5], [2, 5, 1]) for engine in both(task, algorithm)]
    for key, value in vectors(results[0]).items():
        assert (vectors(results[1])[key] - value).norm() <= 1e-10 * value.norm(), key
