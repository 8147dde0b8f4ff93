"""The formulas that one reads are those that run: each round calls them, on every engine, on the real model."""

import itertools

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.engines.cohort import CohortEngine
from fedgbo.engines.one_call import OneCall, SparseDescent
from fedgbo.engines.plain import InPlace
from fedgbo.engines.select import engine_for
from fedgbo.engines.threads import ThreadedEngine
from fedgbo.native import library
from tests.conftest import make_task
from tests.engines.sparse_tasks import sparse_task

ALGORITHM = fedgbo.FedGBO(fedgbo.SGDm(lr=0.2, beta=0.9))
ROUNDS, COHORT = 4, 3


def small():
    return make_task(clients=5, batch_size=4, clients_per_round=COHORT)


def unknown():
    """A model with a layer that the C code does not know."""
    model = lambda: nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2))  # noqa: E731
    return make_task(clients=5, batch_size=4, clients_per_round=COHORT, model=model)


def sparse():
    return sparse_task(per_round=COHORT)


ENGINES = {  # task and settings, and the length of its model
    "plain": (small, {"engine": "plain"}, 26),
    "in place": (unknown, {"workers": 1}, 26),
    "threaded": (unknown, {"workers": 2}, 26),
    "many clients": (unknown, {"engine": "vmap"}, 26),
    "one call": (small, {"workers": 1}, 26),
    "sparse": (sparse, {"workers": 1}, 123),
}


@pytest.fixture(params=ENGINES)
def case(request, monkeypatch):
    if request.param in ("sparse", "one call") and library() is None:
        pytest.skip("no C compiler here")
    if request.param == "threaded":
        monkeypatch.setattr("fedgbo.engines.select.WORTH_THREADS", 0)
    return request.param


def run(case, algorithm=ALGORITHM):
    task, settings, _ = ENGINES[case]
    return fedgbo.run(task(), algorithm, rounds=ROUNDS, local_steps=3, **settings)


def test_these_are_six_engines(case):
    task, settings, length = ENGINES[case]
    engine = engine_for(task(), ALGORITHM, 0, settings.get("workers", 1), engine=settings.get("engine", "auto"))
    descent = getattr(engine, "plain", engine).descent
    assert (type(engine) is ThreadedEngine) == (case == "threaded")
    assert (type(engine) is CohortEngine) == (case == "many clients")
    assert type(descent) is {"plain": type(None), "sparse": SparseDescent, "one call": OneCall}.get(case, InPlace)
    assert len(engine.origin.params) == length


def test_every_round_calls_the_formulas_on_the_whole_model(case, monkeypatch):
    calls = {"server_update": [], "track": [], "affine": [], "client_update": []}

    def watch(kind, name, vector):
        formula = getattr(kind, name)

        def watched(self, *args):
            calls[name].append(len(vector(*args)))
            return formula(self, *args)

        monkeypatch.setattr(kind, name, watched)

    watch(fedgbo.FedGBO, "server_update", lambda server, mean, steps: mean.params)
    watch(fedgbo.FedGBO, "client_update", lambda down, client: down.params)
    watch(fedgbo.SGDm, "track", lambda stats, grad: grad)
    watch(fedgbo.SGDm, "affine", lambda stats: stats["m"])
    run(case)
    assert calls["server_update"] == calls["track"] == [ENGINES[case][2]] * ROUNDS
    updates = 1 + ROUNDS if case == "many clients" else ROUNDS * COHORT  # once for a cohort, and a trial before round 1
    assert calls["client_update"] == [ENGINES[case][2]] * updates
    assert set(calls["affine"]) == {ENGINES[case][2]}
    if case == "many clients":  # the trial takes one local step, each cohort three, by `optimiser.update`
        assert len(calls["affine"]) == 1 + ROUNDS * (3 + 1)
    elif case == "plain":  # the textbook loop calls it in every local step, and the server to invert
        assert len(calls["affine"]) == ROUNDS * (COHORT * 3 + 1)
    else:  # once in a round for all clients (threads may begin together), and the server to invert
        assert ROUNDS * 2 <= len(calls["affine"]) <= ROUNDS * (2 + (case == "threaded"))


def test_the_server_update_sees_the_model_as_it_is(case, monkeypatch):
    seen, update = [], fedgbo.FedGBO.server_update

    def watched(self, server, mean, steps):
        after = update(self, server, mean, steps)
        seen.append((server, mean, after, steps))
        return after

    monkeypatch.setattr(fedgbo.FedGBO, "server_update", watched)
    result = run(case)
    for (_, _, after, _), (server, _, _, _) in itertools.pairwise(seen):
        assert torch.equal(after.params, server.params)
        assert torch.equal(after.stats["m"], server.stats["m"])
    server, mean, after, steps = seen[-1]
    assert (mean.clients, steps) == (COHORT, 3.0)
    assert torch.equal(after.params, server.params - mean.params)
    m = server.stats["m"]
    g = (mean.params / 3 - 0.2 * 0.9 * m) / (0.2 * (1 - 0.9))
    assert torch.equal(after.stats["m"], 0.9 * m + (1 - 0.9) * g)
    assert torch.equal(result.params, after.params)


def test_a_change_of_affine_in_one_place_changes_training(case, monkeypatch):
    """Twice the offset and twice the scale are twice the learning rate, in local steps and in the inverse."""
    before, affine = run(case), fedgbo.SGDm.affine
    expected = run(case, fedgbo.FedGBO(fedgbo.SGDm(lr=0.4, beta=0.9)))
    monkeypatch.setattr(fedgbo.SGDm, "affine", lambda self, stats: tuple(2 * part for part in affine(self, stats)))
    changed = run(case)
    assert not torch.allclose(changed.params, before.params, rtol=1e-3)
    assert torch.allclose(changed.params, expected.params, rtol=1e-5, atol=1e-6)
    assert torch.allclose(changed.state.stats["m"], expected.state.stats["m"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "name"), [(fedgbo.SGDm, "track"), (fedgbo.FedGBO, "server_update")])
def test_a_change_of_the_servers_formulas_changes_training(case, kind, name, monkeypatch):
    before, formula = run(case), getattr(kind, name)

    def changed(self, *args):
        result = formula(self, *args)
        return {"m": 2 * result["m"]} if name == "track" else fedgbo.State(2 * result.params, result.stats)

    monkeypatch.setattr(kind, name, changed)
    assert not torch.allclose(run(case).params, before.params, rtol=1e-3)
