"""Every part of the pipeline, and SCAFFOLD, against a short reference that shares nothing with the package.

Clients of unequal sizes, partial participation, full batches, unequal numbers of local steps.
"""

from zlib import crc32

import numpy as np
import pytest
import torch
from torch import nn

import fedgbo

SIZES, K, LR, ROUNDS, SEED = [5, 20, 9, 14, 30, 7], [3, 1, 4, 2, 5, 3], 0.3, 6, 3
RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 4)) + RNG.normal(size=4), RNG.integers(0, 3, n)) for n in SIZES]
TEST = (RNG.normal(size=(10, 4)), RNG.integers(0, 3, 10))


def task(clients_per_round=3):
    data = fedgbo.FederatedData.from_clients(train=CLIENTS, test=TEST)
    return fedgbo.Task("uneven", data, lambda: nn.Linear(4, 3).double(), clients_per_round, batch_size=None)


def gradient(x, client):
    """The gradient of the mean cross-entropy of a linear model; x is weight (3, 4), then bias (3)."""
    features, labels = CLIENTS[client]
    scores = features @ x[:12].reshape(3, 4).T + x[12:]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True) - np.eye(3)[labels]
    return np.concatenate([(p.T @ features).ravel(), p.sum(axis=0)]) / len(labels)


def stream(purpose, t):
    return np.random.default_rng([SEED, crc32(purpose.encode()), t])


def reference(
    start, combine, cohort_of=lambda t: sorted(stream("cohort", t).choice(6, 3, replace=False)), scaffold=False
):
    x, c, own = start.copy(), np.zeros(15), {i: np.zeros(15) for i in range(6)}
    for t in range(ROUNDS):
        cohort, deltas, changes = cohort_of(t), [], []
        for i in cohort:
            y = x.copy()
            for _ in range(K[i]):
                y = y - LR * (gradient(y, i) + (c - own[i] if scaffold else 0))
            deltas.append(x - y)
            if scaffold:
                new = own[i] - c + (x - y) / (LR * K[i])
                changes.append(new - own[i])
                own[i] = new
        if len(cohort):
            x = x - combine(np.array(deltas), cohort)
            c = c + len(cohort) / 6 * np.mean(changes, axis=0) if scaffold else c
    return (x, c) if scaffold else x


def mean(deltas, cohort):
    return deltas.mean(axis=0)


def by_samples(deltas, cohort):
    return np.average(deltas, axis=0, weights=[SIZES[i] for i in cohort])


def clipped(deltas, cohort):
    norms = np.linalg.norm(deltas, axis=1, keepdims=True)
    return (deltas * np.minimum(1, 0.2 / norms)).mean(axis=0)


def median(deltas, cohort):
    return np.median(deltas, axis=0)


def poisson(t):
    return np.flatnonzero(stream("cohort", t).random(6) < 0.3)


SGD = fedgbo.SGD(LR)
CASES = {
    "mean": (fedgbo.FedAvg(SGD), {}, mean, {}),
    "weighted by samples": (fedgbo.FedAvg(SGD), {"weights": "samples"}, by_samples, {}),
    "clipped": (fedgbo.FedAvg(SGD), {"transforms": [fedgbo.ClipNorm(0.2)]}, clipped, {}),
    "median": (fedgbo.FedAvg(SGD), {"aggregator": fedgbo.Median()}, median, {}),
    "Poisson": (fedgbo.FedAvg(SGD), {"sampler": fedgbo.Poisson(0.3)}, mean, {"cohort_of": poisson}),
    "SCAFFOLD": (fedgbo.SCAFFOLD(SGD), {}, mean, {"scaffold": True}),
}


@pytest.mark.parametrize("engine", ["auto", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case, engine):
    algorithm, options, combine, more = CASES[case]
    start = fedgbo.run(task(), algorithm, rounds=1, seed=SEED, callbacks=[fedgbo.Progress.stop]).params.numpy()
    result = fedgbo.run(task(), algorithm, rounds=ROUNDS, local_steps=K, seed=SEED, engine=engine, **options)
    expected = reference(start, combine, **more)
    found = (result.params.numpy(), result.state.stats["c"].numpy()) if "scaffold" in more else result.params.numpy()
    assert np.abs(expected[0] - start).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_poisson_case_has_an_empty_round():
    assert min(len(poisson(t)) for t in range(ROUNDS)) == 0


def test_weights_by_samples_also_weight_the_mean_number_of_local_steps():
    """FedGBO's inverse is exact with weights, because the mean of K has the same weights."""
    optimiser = fedgbo.SGDm(LR, 0.9)
    inverted, sent = (
        fedgbo.run(task(), fedgbo.FedGBO(optimiser, inverse=inverse), rounds=ROUNDS, local_steps=K, weights="samples")
        for inverse in (None, False)
    )
    assert torch.allclose(inverted.params, sent.params, rtol=1e-10)
    assert torch.allclose(inverted.state.stats["m"], sent.state.stats["m"], rtol=1e-9)


def test_weights_change_nothing_where_all_clients_have_the_same_number_of_samples():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 4)), rng.integers(0, 3, 8)) for _ in range(4)]
    data = fedgbo.FederatedData.from_clients(train=clients, test=TEST)
    even = fedgbo.Task("even", data, lambda: nn.Linear(4, 3))
    one, other = (fedgbo.run(even, fedgbo.FedAvg(SGD), rounds=3, weights=w).params for w in ("clients", "samples"))
    assert torch.allclose(one, other, rtol=0, atol=1e-7)
