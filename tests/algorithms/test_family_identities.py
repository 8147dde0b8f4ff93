"""Identities that the papers of the family state, what clients keep after a crash, and the errors of settings."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.memory import ClientMemory
from tests.conftest import make_task
from tests.examples import ALGORITHMS as EXAMPLES
from tests.runs.test_memory import Killed, kill_at

SGD = fedgbo.SGD(lr=0.2)
TASK = make_task(clients=6, batch_size=5, clients_per_round=3, dtype=torch.float64)
ONE = make_task(clients=1, batch_size=5, dtype=torch.float64)


def params(algorithm, task=TASK, **more):
    return fedgbo.run(task, algorithm, **({"rounds": 4, "local_steps": 3} | more)).params


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@settings(max_examples=8, deadline=None)
@given(alpha=st.floats(0.01, 1), lr=st.floats(0.01, 0.5), steps=st.lists(st.integers(1, 4), min_size=6, max_size=6))
def test_fedcm_is_fedgbo_with_sgdm(alpha, lr, steps):
    fedcm = params(fedgbo.FedCM(fedgbo.SGD(lr), alpha), local_steps=steps)
    same(fedcm, params(fedgbo.FedGBO(fedgbo.SGDm(lr, beta=1 - alpha)), local_steps=steps))


def test_mofedsam_is_fedgbo_with_sgdm_and_the_rule():
    rule = fedgbo.SharpnessAware(0.3)
    same(params(fedgbo.MoFedSAM(SGD, 0.25, 0.3)), params(fedgbo.FedGBO(fedgbo.SGDm(0.2, 0.75), objective=rule)))
    same(params(fedgbo.FedSAM(SGD, 0.3)), params(fedgbo.FedAvg(SGD, objective=rule)))
    assert not torch.allclose(params(fedgbo.FedSAM(SGD, 0.3)), params(fedgbo.FedAvg(SGD)), rtol=1e-4)


@settings(max_examples=2, deadline=None)
@given(lr=st.floats(0.01, 0.5), steps=st.integers(1, 4))
def test_limits_of_the_papers(lr, steps):
    """Without a perturbation, a fairness exponent or unequal K, these are FedAvg and FedCM; and full Mime with full
    batches and one local step is the centralised optimiser, which FedGBO is there too.
    """
    rate = fedgbo.SGD(lr)
    fedavg = params(fedgbo.FedAvg(rate), local_steps=steps)
    same(params(fedgbo.FedSAM(rate, rho=0.0), local_steps=steps), fedavg)
    same(params(fedgbo.QFedAvg(rate, q=0.0), local_steps=steps), fedavg)
    same(params(fedgbo.FedNova(rate), local_steps=steps), fedavg)
    fedcm = params(fedgbo.FedCM(rate, alpha=0.3), local_steps=steps)
    same(params(fedgbo.MoFedSAM(rate, alpha=0.3, rho=0.0), local_steps=steps), fedcm)
    everyone, momentum = make_task(clients=4, dtype=torch.float64), fedgbo.SGDm(lr, 0.8)
    mime = params(fedgbo.Mime(momentum), everyone, local_steps=1)
    same(mime, params(fedgbo.FedGBO(momentum), everyone, local_steps=1))
    same(mime, params(fedgbo.Mimelite(momentum), everyone, local_steps=1))


def test_the_rule_keeps_the_inverse_exact():
    rule = [fedgbo.SharpnessAware(0.3), fedgbo.Proximal(0.2)]
    adam = fedgbo.Adam(0.1, 0.9)
    sent = params(fedgbo.FedGBO(adam, inverse=False, objective=rule), local_steps=[1, 4, 2, 3, 1, 2])
    same(params(fedgbo.FedGBO(adam, objective=rule), local_steps=[1, 4, 2, 3, 1, 2]), sent)


def test_the_rule_takes_two_gradients_on_the_same_minibatch():
    """FLOPs: two operations for each parameter in a plain step, six with the rule; and twice the gradients."""
    objectives = ((), [fedgbo.SharpnessAware(0.1)])
    records = [fedgbo.run(TASK, fedgbo.FedAvg(SGD, objective=o), rounds=2).history[-1] for o in objectives]
    step = 2 * 3 * 10 * 26  # rounds, clients, local steps, parameters
    assert records[1].flops - 6 * step == 2 * (records[0].flops - 2 * step)


@pytest.mark.parametrize("algorithm", [fedgbo.SCAFFOLD(SGD), fedgbo.FedNova(SGD), fedgbo.Mime(SGD)], ids=str)
def test_with_one_client_it_is_sgd(algorithm):
    """SCAFFOLD's c and c_i are equal; Mime's g(x) on the minibatch and c differ, but for a full batch."""
    task = make_task(clients=1, dtype=torch.float64)
    same(params(algorithm, task), params(fedgbo.FedAvg(SGD), task))


def test_fednova_weights_clients_alike_whatever_their_steps():
    """The mean of normalised differences, times the mean K: by hand for one round."""
    steps, fedavg = [1, 5, 2, 4, 3, 3], fedgbo.FedAvg(SGD)
    everyone = make_task(clients=6, dtype=torch.float64)
    start = params(fedavg, everyone, callbacks=[fedgbo.Progress.stop])
    alone = [
        start - params(fedavg, everyone, rounds=1, local_steps=steps, sampler=Only(i)) for i in range(6)
    ]  # fmt: skip
    expected = start - np.mean(steps) * sum(d / k for d, k in zip(alone, steps, strict=True)) / 6
    same(params(fedgbo.FedNova(SGD), everyone, rounds=1, local_steps=steps), expected)


class Only(fedgbo.Sampler):
    def __init__(self, client):
        self.client = client

    def sample(self, clients, t, rng):
        return [self.client]


def states(folder, algorithm):
    checkpoint, _ = RunFolder(folder).latest()
    memory = ClientMemory(folder / "clients", checkpoint.clients)
    initial = algorithm.client_state(checkpoint.state.params)
    return {client: memory.load(client, initial) for client in sorted(checkpoint.clients)}


def test_ditto_without_a_pull_is_local_training(tmp_path):
    """With full batches, where it does not matter which minibatches v gets."""
    task = make_task(clients=3, dtype=torch.float64)
    algorithm = fedgbo.Ditto(SGD, lam=0.0)
    result = fedgbo.run(task, algorithm, rounds=4, local_steps=3, out=tmp_path / "run")
    for client, state in states(tmp_path / "run", algorithm).items():
        local = params(fedgbo.FedAvg(SGD), task, sampler=Only(client))
        same(algorithm.personal(result.params, state), local)


def test_apfl_with_everything_personal_is_local_training(tmp_path):
    task = make_task(clients=3, dtype=torch.float64)
    algorithm = fedgbo.APFL(SGD, alpha=1.0)
    fedgbo.run(task, algorithm, rounds=4, local_steps=3, out=tmp_path / "run")
    for client, state in states(tmp_path / "run", algorithm).items():
        same(state["v"], params(fedgbo.FedAvg(SGD), task, sampler=Only(client)))


def test_feddyn_with_one_client_adds_the_correction_of_the_server():
    """N = 1 and K = 1: y = x - η (g - h), h' = h + α (x - y), x' = y - h' / α, by hand on one round."""
    task = make_task(clients=1, dtype=torch.float64)
    start = params(fedgbo.FedAvg(SGD), task, callbacks=[fedgbo.Progress.stop])
    y = params(fedgbo.FedAvg(SGD), task, rounds=1, local_steps=1)
    same(params(fedgbo.FedDyn(SGD, alpha=0.5), task, rounds=1, local_steps=1), y - (start - y))


def test_personal_layers_never_reach_the_server():
    model = TASK.model()
    head = fedgbo.places(model, "2")
    assert head == [(16, 26)]
    start = params(fedgbo.FedAvg(SGD), callbacks=[fedgbo.Progress.stop])
    for algorithm in (fedgbo.FedPer(SGD, head), fedgbo.FedRep(SGD, head, 2), fedgbo.FedBN(SGD, head)):
        found = params(algorithm)
        assert torch.equal(found[16:], start[16:])
        assert not torch.allclose(found[:16], start[:16])
        own = algorithm.client_state(found)["own"] + 1
        assert algorithm.personal(found, {"own": own})[16:].tolist() == own.tolist()


def test_places_of_layers():
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    assert fedgbo.places(model, nn.Linear) == [(0, 16), (24, 34)]
    assert fedgbo.places(model, "0", "1") == [(0, 24)]
    with pytest.raises(fedgbo.ConfigError, match=r"the model has no layer 'head' \(it has: 0, 1, 2\)"):
        fedgbo.places(model, "head")
    with pytest.raises(fedgbo.ConfigError, match="the model has no layer with trainable parameters that is "):
        fedgbo.places(model, nn.Conv2d)


STATEFUL = [name for name in ALGORITHMS if EXAMPLES[name].client_state(torch.zeros(26))]


def test_these_keep_something():
    assert set(STATEFUL) == {"apfl", "ditto", "fedbn", "feddyn", "fedper", "fedrep", "scaffold"}


@pytest.mark.parametrize("name", [*STATEFUL, "mime", "ghbm", "qfedavg"])
def test_a_killed_run_is_resumed_bit_for_bit_for_any_number_of_workers(name, tmp_path):
    algorithm, more = EXAMPLES[name], {"rounds": 7, "eval_every": 3}
    whole = fedgbo.run(TASK, algorithm, out=tmp_path / "whole", workers=1, **more)
    with pytest.raises(Killed):
        fedgbo.run(TASK, algorithm, out=tmp_path / "cut", callbacks=[kill_at(5)], **more)
    resumed = fedgbo.run(TASK, algorithm, out=tmp_path / "cut", resume=True, workers=2, **more)
    for key, vector in whole.state.tensors().items():
        assert torch.equal(resumed.state.tensors()[key], vector)
    kept, expected = states(tmp_path / "cut", algorithm), states(tmp_path / "whole", algorithm)
    assert kept.keys() == expected.keys()
    for client, state in expected.items():
        assert all(torch.equal(kept[client][key], vector) for key, vector in state.items())


def test_mime_pays_for_both_exchanges():
    record = fedgbo.run(TASK, fedgbo.Mime(fedgbo.SGDm(0.1, 0.9)), rounds=2, local_steps=3).history[-1]
    clients, size = 2 * 3, 26 * 8
    assert record.download_bytes == clients * (1 + 3) * size  # x; then x, m and c
    assert record.upload_bytes == clients * 2 * size
    gradients = clients * (12 + 2 * 3 * 5)  # all samples, and two gradients of each minibatch of five
    updates = record.flops - gradients * 3 * 20
    assert 0 < updates < clients * 40 * 26


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.FedCM(SGD, alpha=0.0), "alpha must be above 0 and at most 1, not 0.0"),
        (lambda: fedgbo.FedCM(SGD, alpha=0.1, server_lr=0), "server_lr must be a finite number above 0"),
        (lambda: fedgbo.FedSAM(SGD, rho=-1), "rho must be a finite number of at least 0"),
        (lambda: fedgbo.FedSAM(SGD, rho=1, server_lr=-1), "server_lr must be a finite number above 0"),
        (lambda: fedgbo.MoFedSAM(SGD, alpha=2, rho=0.1), "alpha must be above 0 and at most 1, not 2"),
        (lambda: fedgbo.MoFedSAM(SGD, alpha=1, rho=-0.1), "rho must be a finite number of at least 0"),
        (lambda: fedgbo.SharpnessAware(-0.1), "rho must be a finite number of at least 0"),
        (lambda: fedgbo.FedNova(SGD, server_lr=0), "server_lr must be a finite number above 0"),
        (lambda: fedgbo.FedDyn(SGD, alpha=0), "alpha must be a finite number above 0"),
        (lambda: fedgbo.GHBM(SGD, beta=1.0, tau=1), "beta must be at least 0 and below 1"),
        (lambda: fedgbo.GHBM(SGD, beta=0.5, tau=0), "tau must be a whole number of at least 1, not 0"),
        (lambda: fedgbo.QFedAvg(SGD, q=-1), "q must be a finite number of at least 0"),
        (lambda: fedgbo.Ditto(SGD, lam=-1), "lam must be a finite number of at least 0"),
        (lambda: fedgbo.APFL(SGD, alpha=1.5), "alpha must be above 0 and at most 1"),
        (
            lambda: fedgbo.FedPer(SGD, [3]),
            r"personal_part must be pairs \(begin, end\) of positions in the model, not 3",
        ),
        (lambda: fedgbo.FedPer(SGD, [(-1, 3)]), "personal_part's begin must be a whole number of at least 0, not -1"),
        (lambda: fedgbo.FedBN(SGD, [(3, 3)]), "personal_part's end must be a whole number of at least 4, not 3"),
        (lambda: fedgbo.FedRep(SGD, [(0, 3)], head_steps=0), "head_steps must be a whole number of at least 1"),
        (lambda: fedgbo.FedAdam(SGD, fedgbo.SGDm(0.1, 0.9)), r"FedAdam: server must be Adam\(lr=...\)"),
        (lambda: fedgbo.FedAvgM(SGD, fedgbo.Adam(0.1, 0.9)), r"FedAvgM: server must be SGDm\(lr=...\)"),
        (lambda: params(fedgbo.FedPer(SGD, [(20, 99)])), r"personal_part is \[\(20, 99\)\], but the model has 26"),
        (lambda: params(fedgbo.FedPer(SGD, 27)), "personal_part is 27, but the model has 26 parameters"),
        (lambda: fedgbo.FedPer(SGD, "output"), "personal_part must be a whole number of at least 1, not 'output'"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()
