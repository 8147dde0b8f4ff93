from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.random import permutation, stream
from fedgbo.engines import client as client_module
from fedgbo.engines.batches import Batches, walk
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.plain import InPlace, PlainEngine
from fedgbo.tasks import TASKS
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES, States, client_of, numbers, train, vectors

SGD = fedgbo.SGD(lr=0.1)
AVG = fedgbo.FedAvg(SGD)


def test_gradients_are_autograds_own_in_the_order_of_parameters():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    x, y = torch.randn(5, 1, 6, 6), torch.randint(3, (5,))
    loss = functional.cross_entropy(module(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    model = FlatModel(module, functional.cross_entropy)
    grad, value = model.gradient(model.params.clone(), (x, y))
    assert torch.allclose(grad, expected, rtol=1e-5, atol=1e-7)
    assert value == loss.detach()
    again, _ = model.gradient(model.params.clone(), (x, y))
    assert torch.equal(grad, again)
    assert grad.data_ptr() != again.data_ptr()


def test_frozen_parameters_stay_and_do_not_travel():
    def build():
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        module[0].requires_grad_(False)
        return module

    result = fedgbo.run(make_task(model=build), fedgbo.FedGBO(fedgbo.SGDm(0.5, 0.9)), rounds=3)
    start = PlainEngine(make_task(model=build), AVG, 0).origin
    assert len(result.params) == 10  # of the second layer
    assert not torch.equal(result.params, start.params)
    assert torch.equal(result.model()[0].weight, start.blueprint.module[0].weight)
    assert result.history[-1].upload_bytes == 3 * 4 * 10 * 4  # rounds, clients, numbers, bytes each


def test_a_full_gradient_is_the_mean_over_all_samples_in_chunks(monkeypatch):
    engine = PlainEngine(make_task(samples=11, dtype=torch.float64), AVG, 0)
    x = engine.origin.params.clone()
    whole = client_of(engine, AVG).full_gradient(x)
    monkeypatch.setattr(client_module, "CHUNK", 4)
    client = client_of(engine, AVG)
    assert torch.allclose(client.full_gradient(x), whole, rtol=1e-12)
    assert (client.id, client.samples, client.steps, client.gradients) == (1, 11, 1, 11)
    rows = slice(11, 22)
    data = engine.task.data.train
    expected, _ = engine.model.gradient(x, (data.inputs[rows], data.targets[rows]))
    assert torch.allclose(whole, expected, rtol=1e-12)


def test_the_loss_is_the_tasks_on_all_samples_without_terms(monkeypatch):
    monkeypatch.setattr(client_module, "CHUNK", 4)
    algorithm = fedgbo.FedProx(SGD, mu=100.0)
    engine = PlainEngine(make_task(samples=11, dtype=torch.float64), algorithm, 0)
    client, y = client_of(engine, algorithm, client=2), engine.origin.params + 1
    data = engine.task.data.train
    outputs = engine.model.outputs(y, data.inputs[22:33])
    assert client.loss(y) == pytest.approx(float(functional.cross_entropy(outputs, data.targets[22:33])), rel=1e-12)
    assert client.gradients == 0
    assert client.losses == []


def test_minibatches_walk_all_samples_then_wrap_round_reshuffled():
    batches = Batches(5, 2, 0, 0, 0)
    walk = np.concatenate([batches.take() for _ in range(5)])
    assert sorted(walk[:5]) == sorted(walk[5:]) == list(range(5))
    assert list(walk[:5]) != list(walk[5:])


def test_a_small_client_repeats_samples():
    batch = Batches(3, 8, 0, 0, 0).take()
    assert len(batch) == 8
    assert np.bincount(batch).min() >= 2


def test_batches_depend_on_round_and_client_only():
    """The same local batches whatever the algorithm, the cohort or the order: paired comparisons are paired."""
    engine = PlainEngine(make_task(batch_size=4), AVG, 0)
    x = engine.origin.params.clone()

    def first_gradient(client, t, warm_up):
        for other in warm_up:
            client_of(engine, AVG, other, t=t).gradient(x)
        return client_of(engine, AVG, client, t=t).gradient(x)

    assert torch.equal(first_gradient(2, 0, []), first_gradient(2, 0, [0, 1, 3]))
    assert not torch.equal(first_gradient(2, 0, []), first_gradient(2, 1, []))


def test_dropout_is_seeded_and_leaves_torchs_own_generator_alone():
    task = make_task(model=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = fedgbo.run(task, AVG, rounds=3).params
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(fedgbo.run(task, AVG, rounds=3).params, first)
    assert not torch.equal(fedgbo.run(task, AVG, rounds=3, seed=1).params, first)


def test_regression_with_a_loss_of_ones_own():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = (x @ [[1.0], [-2.0], [0.5]]) + 0.3
    data = fedgbo.FederatedData.from_clients(train=[(x[:20], y[:20]), (x[20:], y[20:])], test=(x, y))
    task = fedgbo.Task("line", data, lambda: nn.Linear(3, 1), batch_size=None, loss=functional.mse_loss)
    result = fedgbo.run(task, fedgbo.FedGBO(fedgbo.SGDm(lr=0.2, beta=0.5)), rounds=60)
    assert result.accuracy is None
    assert result.loss < 1e-6
    assert result.best.loss == min(record.loss for record in result.history)
    assert result.params.tolist() == pytest.approx([1.0, -2.0, 0.5, 0.3], abs=1e-2)


def data_of(y, x=None):
    x = np.zeros((len(y), 3)) if x is None else x
    return fedgbo.FederatedData.from_clients(train=[(x, y)], test=(x, y))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda: fedgbo.Task("t", data_of([0, 5]), lambda: nn.Linear(3, 2)), "labels go from 0 to 5.*has 2 outputs"),
        (lambda: fedgbo.Task("t", data_of([0, -1]), lambda: nn.Linear(3, 2)), "labels go from -1 to 0"),
        (lambda: fedgbo.Task("t", data_of([0.0, 1.0]), lambda: nn.Linear(3, 2)), "targets are not whole numbers"),
        (lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Linear(4, 2)), "the model fails on a batch of inputs"),
        (lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Flatten(0)), "has no parameters to train"),
        (
            lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))),
            "must return one row for each sample",
        ),
        (
            lambda: fedgbo.Task("t", data_of([0, 1]), lambda: nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (2, 1)))),
            r"must return \(samples, classes\)",
        ),
        (
            lambda: fedgbo.Task("t", data_of([0.5, 1.0]), lambda: nn.Linear(3, 1), loss=functional.mse_loss),
            "would be broadcast",
        ),
        (
            lambda: fedgbo.Task(
                "t",
                data_of([0, 1]),
                lambda: nn.Linear(3, 2),
                loss=lambda o, t: functional.cross_entropy(o, t, reduction="none"),
            ),
            "the loss must return one number",
        ),
        (
            lambda: fedgbo.Task(
                "t", data_of([0, 1]), lambda: nn.Linear(3, 2), loss=lambda o, t: functional.nll_loss(o, t[:1])
            ),
            "the loss fails on outputs",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_data(task, message):
    with pytest.raises((fedgbo.DataError, fedgbo.ConfigError), match=message):
        fedgbo.run(task(), AVG, rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_task(clients_per_round=5), "clients_per_round is 5, but there are 4 clients"),
        (lambda: make_task(clients_per_round=0), "clients_per_round must be a whole number"),
        (lambda: make_task(batch_size=0), "batch_size must be a whole number"),
        (lambda: make_task(model="linear"), "model must be a function that builds the model"),
        (lambda: replace(make_task(), buffers="none"), "buffers must be 'average' or 'local', not 'none'"),
        (lambda: fedgbo.Task("t", [1, 2], lambda: nn.Linear(3, 2)), "data must be FederatedData"),
    ],
)
def test_tasks_that_cannot_be(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()


def test_a_walk_is_one_permutation_after_the_other():
    laps = [permutation(5, 7, "batches", 2, 3, lap) for lap in range(3)]
    assert walk(5, 13, 7, 2, 3).tolist() == np.concatenate(laps)[:13].tolist()


@pytest.mark.parametrize(("samples", "batch_size"), [(1, 1), (1, 8), (3, 8), (5, 2), (8, 8), (100, 7)])
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_minibatches_are_cut_from_the_walk(samples, batch_size, steps):
    """However many are drawn together."""
    batches = Batches(samples, batch_size, 3, 11, 4)
    rows = np.concatenate([batches.take(steps) for _ in range(-(-40 // steps))])
    assert rows[: 40 * batch_size].tolist() == walk(samples, 40 * batch_size, 3, 11, 4).tolist()


def test_without_a_batch_size_a_minibatch_is_all_samples_in_order():
    batches = Batches(4, None, 0, 0, 0)
    assert [batches.take().tolist() for _ in range(2)] == [[0, 1, 2, 3]] * 2
    assert batches.take(2).tolist() == [0, 1, 2, 3] * 2


def test_a_client_without_samples_cannot_be_trained():
    data = make_task().data
    empty = fedgbo.FederatedData(data.train, np.array([0, 12, 12, 48]), data.test)
    task = fedgbo.Task("empty", empty, make_task().model, batch_size=4)
    with pytest.raises(fedgbo.DataError, match="client 1 has no training samples"):
        fedgbo.run(task, AVG, rounds=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_steps_in_place_agree_with_the_textbook_loop(name, dtype):
    task, algorithm = make_task(batch_size=5, dtype=dtype), EXAMPLES[name]
    textbook, fast = PlainEngine(task, algorithm, 0), PlainEngine(task, algorithm, 0, descent=InPlace())
    assert "the textbook loop" in textbook.choice
    by_textbook = {"fedprox", "feddyn", "fedsam", "mofedsam"}  # whose terms change the gradient
    assert ("local steps in place" in fast.choice) == (name not in by_textbook)
    expected = train(textbook, algorithm, [0, 2, 3], [4, 1, 3])
    got = train(fast, algorithm, [0, 2, 3], [4, 1, 3])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for key, value in vectors(expected).items():
        assert (vectors(got)[key] - value).norm() <= tolerance * value.norm(), key
    assert numbers(got) == numbers(expected) | {"loss": pytest.approx(expected.loss, rel=tolerance)}


@dataclass(frozen=True)
class Wide(fedgbo.FedAvg):
    """FedAvg that keeps its server state in float64, whatever the model's type."""

    optimiser: fedgbo.SGDm

    def init(self, params):
        return fedgbo.State(params.double(), {"m": 0.1 + torch.zeros_like(params, dtype=torch.float64)})

    def server_update(self, server, mean, steps):
        return fedgbo.State(server.params - mean.params, server.stats)


@pytest.mark.parametrize("descent", [None, InPlace()])
def test_a_server_state_of_another_type_than_the_models(descent):
    algorithm = Wide(fedgbo.SGDm(0.2, 0.9))
    narrow, wide = (PlainEngine(make_task(dtype=kind), algorithm, 0, descent=descent) for kind in (None, torch.float64))
    down = algorithm.init(narrow.origin.params)
    results = [train(engine, algorithm, [0, 1], [3, 2], down=down).mean.params for engine in (narrow, wide)]
    assert results[0].dtype == torch.float64
    assert (results[0] - results[1]).norm() < 1e-5 * results[1].norm()


@dataclass(frozen=True)
class Asks(fedgbo.FederatedAlgorithm):
    """Uploads what a question about a client gives."""

    question: object

    def client_update(self, down, client):
        return fedgbo.State(self.question(down.params, client))


def noisy():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def augmented_task():
    data = TASKS["cifar100-synthetic"](clients=2, test_samples=4).data
    return fedgbo.Task("augmented", data, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 100)), 1, 4)


AGAIN = {"minibatch": lambda: make_task(batch_size=4), "dropout": lambda: make_task(batch_size=4, model=noisy),
         "augmentation": augmented_task}  # fmt: skip


@pytest.mark.parametrize("kind", AGAIN)
def test_a_gradient_again_is_of_the_same_minibatch(kind):
    engine = PlainEngine(AGAIN[kind](), AVG, 0)
    x = engine.origin.params.clone()
    client, other = client_of(engine, AVG), client_of(engine, AVG)
    first, other_first = client.gradient(x), other.gradient(x)
    if kind != "dropout":  # both clients draw from torch's one generator
        assert torch.equal(first, other_first)
    client = client_of(engine, AVG)
    first = client.gradient(x)
    client.gradient(x + 1, again=True)
    client.full_gradient(x)
    assert torch.equal(client.gradient(x, again=True), first)
    second = client.gradient(x)
    assert not torch.equal(second, first)
    assert torch.equal(client.gradient(x, again=True), second)
    assert len(client.losses) == 2  # minibatches are counted once
    assert client.gradients == 5 * 4 + client.samples


def test_a_gradient_again_does_not_change_the_minibatches_that_follow():
    engine = PlainEngine(make_task(batch_size=4), AVG, 0)
    x = engine.origin.params.clone()
    client, other = client_of(engine, AVG), client_of(engine, AVG)
    expected = [other.gradient(x) for _ in range(3)]
    got = []
    for _ in range(3):
        got.append(client.gradient(x))
        client.gradient(x - 1, again=True)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("kind", AGAIN)
@pytest.mark.parametrize("descent", [None, InPlace()])
def test_after_descend_the_last_minibatch_is_that_of_its_last_step(kind, descent):
    engine = PlainEngine(AGAIN[kind](), AVG, 0, descent=descent)
    x = engine.origin.params.clone()
    client = client_of(engine, AVG, steps=3)
    client.descend(x, SGD, {})
    again = client.gradient(x, again=True)
    one_by_one = client_of(engine, AVG, steps=3)
    y = x
    for _ in range(3):
        y = y - 0.1 * one_by_one.gradient(y)
    assert torch.equal(again, one_by_one.gradient(x, again=True))


def test_a_gradient_again_needs_one_before():
    engine = PlainEngine(make_task(), AVG, 0)
    with pytest.raises(fedgbo.ConfigError, match=r"needs a minibatch: call gradient\(params\) first"):
        client_of(engine, AVG).gradient(engine.origin.params, again=True)


def test_the_random_stream_is_of_the_seed_the_round_and_the_client():
    engine = PlainEngine(make_task(), AVG, 5)
    client = client_of(engine, AVG, client=3, t=2)
    expected = stream(5, "client", 2, 3)
    assert [client.rng.integers(2**60) for _ in range(3)] == [expected.integers(2**60) for _ in range(3)]


@pytest.mark.parametrize("engine", ["plain", "auto"])
def test_a_run_with_random_numbers_of_the_clients_own_can_be_repeated(engine):
    algorithm = Asks(lambda x, client: torch.from_numpy(client.rng.normal(size=len(x))).to(x) * client.id)
    first, again, other = (
        fedgbo.run(make_task(), algorithm, rounds=2, seed=seed, engine=engine).params for seed in (0, 0, 1)
    )
    start = PlainEngine(make_task(), AVG, 0).origin.params
    draws = [stream(0, "client", t, c).normal(size=len(start)).astype(np.float32) * c for t in (0, 1) for c in range(4)]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.allclose(first, start - torch.from_numpy(np.sum(draws, axis=0) / 4), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Counts(fedgbo.FederatedAlgorithm):
    """Clients count their rounds; `change` sees the state after that."""

    change: object = None

    def client_state(self, params):
        return {"rounds": torch.zeros_like(params)}

    def client_update(self, down, client):
        client.state["rounds"] = client.state["rounds"] + 1
        up = fedgbo.State(client.state["rounds"] + client.id)
        if self.change is not None:
            self.change(client)
        return up


def test_clients_keep_their_state_from_round_to_round():
    task = make_task(clients=5, clients_per_round=2)
    start = PlainEngine(task, AVG, 0).origin.params
    result = fedgbo.run(task, Counts(), rounds=6)
    seen, moved = np.zeros(5), 0.0
    for t in range(6):
        cohort = np.sort(stream(0, "cohort", t).choice(5, 2, replace=False))
        seen[cohort] += 1
        moved += np.mean(seen[cohort] + cohort)
    assert seen.max() > 1
    assert torch.allclose(result.params, start - moved)


@pytest.mark.parametrize("engine", ["plain", "auto"])
def test_a_whole_state_may_be_replaced(engine):
    """Also on the client whose operations are counted, the first one."""

    def replace(client):
        client.state = {"rounds": client.state["rounds"] + 10}

    result = fedgbo.run(make_task(clients=2), Counts(replace), rounds=2, engine=engine)
    start = PlainEngine(make_task(clients=2), AVG, 0).origin.params
    assert torch.allclose(result.params, start - (0.5 + 1) - (0.5 + 12))


def test_a_state_of_another_type_is_kept_in_the_declared_one():
    def widen(client):
        client.state["rounds"] = client.state["rounds"].double()

    states = States()
    engine = PlainEngine(make_task(), Counts(widen), 0)
    train(engine, Counts(widen), [1], [1], states=states)
    assert states.kept[1]["rounds"].dtype == torch.float32
    assert fedgbo.run(make_task(), Counts(widen), rounds=3).state.params.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.state.update(more=c.state["rounds"]), "left 'more' in client.state, but Counts.client_state decl"),
        (lambda c: c.state.update(rounds=c.state["rounds"][1:]), "left 'rounds' in client.state.*names and shapes"),
        (lambda c: c.state.update(rounds=1.0), "left 'rounds' in client.state"),
        (lambda c: c.state.clear(), "client_update removed rounds from client.state; replace vectors only"),
    ],
)
def test_states_that_were_not_declared(change, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.run(make_task(), Counts(change), rounds=2)


def test_a_state_without_a_declaration():
    algorithm = Asks(lambda x, client: client.state.setdefault("own", torch.zeros_like(x)))
    with pytest.raises(fedgbo.ConfigError, match=r"left 'own' in client.state, but Asks.client_state declares nothing"):
        fedgbo.run(make_task(), algorithm, rounds=1)


@dataclass(frozen=True)
class Decayed(fedgbo.SGDm):
    """Changes the update, but not what it inherits as `affine`."""

    def update(self, params, stats, grad):
        return super().update(params, stats, grad) - 0.1 * params


@pytest.mark.parametrize("engine", ["auto", "plain"])
def test_an_update_that_contradicts_affine_is_refused_by_every_engine(engine):
    with pytest.raises(fedgbo.ConfigError, match=r"Decayed\.update does not agree with affine"):
        fedgbo.run(make_task(), fedgbo.FedGBO(Decayed(0.1, 0.9)), rounds=1, engine=engine)
