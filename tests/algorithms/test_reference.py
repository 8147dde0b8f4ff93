"""Every algorithm with every optimiser against the slow reference: parameters and statistics after several rounds."""

from itertools import pairwise

import pytest
import torch

import fedgbo
from fedgbo.algorithms import ALGORITHMS
from tests.algorithms.reference import Rule, train
from tests.algorithms.test_family import ALGORITHMS as FAMILY
from tests.conftest import make_task

SETTINGS = {
    "sgdm": {"lr": 0.3, "beta": 0.9},
    "rmsprop": {"lr": 0.1, "beta": 0.9},
    "adam": {"lr": 0.1, "beta1": 0.9},
}
OPTIMISERS = {"sgdm": fedgbo.SGDm, "rmsprop": fedgbo.RMSProp, "adam": fedgbo.Adam}
CASES = {
    "fedavg": (fedgbo.FedAvg(fedgbo.SGD(lr=0.3)), {"rule": Rule("sgd", 0.3)}),
    "fedprox": (fedgbo.FedProx(fedgbo.SGD(lr=0.3), mu=0.5), {"rule": Rule("sgd", 0.3), "mu": 0.5}),
    "fedmax": (fedgbo.FedMAX(fedgbo.SGD(lr=0.3), beta=2.0), {"rule": Rule("sgd", 0.3), "hidden_weight": 2.0}),
}
for opt, settings in SETTINGS.items():
    for name in ("fedgbo", "mfl", "mimelite", "mimexlite"):
        CASES[f"{name} {opt}"] = (ALGORITHMS[name](OPTIMISERS[opt](**settings)), {"rule": Rule(opt, **settings)})
    CASES[f"adaptivefedopt {opt}"] = (
        fedgbo.AdaptiveFedOpt(client=fedgbo.SGD(lr=0.3), server=OPTIMISERS[opt](**settings)),
        {"rule": Rule("sgd", 0.3), "server_rule": Rule(opt, **settings)},
    )
K, ROUNDS = 4, 5


def both(case, dtype):
    algorithm, reference = CASES[case]
    task = make_task(dtype=dtype)
    result = fedgbo.run(task, algorithm, rounds=ROUNDS, local_steps=K)
    start = fedgbo.run(task, algorithm, rounds=1, eval_every=1, callbacks=[fedgbo.Progress.stop]).params
    model = task.model().double()
    shapes = [p.shape for p in model.parameters()]
    pieces = start.double().split([shape.numel() for shape in shapes])
    data, offsets = task.data, task.data.offsets
    clients = [(data.train.inputs[a:b].double(), data.train.targets[a:b]) for a, b in pairwise(offsets)]
    x, s = train(
        case.split()[0],
        model,
        [p.view(sh) for p, sh in zip(pieces, shapes, strict=True)],
        clients,
        ROUNDS,
        K,
        **reference,
    )
    flat = {"params": torch.cat([p.flatten() for p in x])}
    for key in s[0]:
        flat[f"stats.{key}"] = torch.cat([part[key].flatten() for part in s])
    return result.state.tensors(), flat, start


@pytest.mark.parametrize("case", CASES)
def test_float64_agrees_to_rounding(case):
    ours, expected, _ = both(case, torch.float64)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(ours[key], value, rtol=1e-9, atol=1e-11), key


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_to_1e_4_of_the_distance_travelled(case):
    ours, expected, start = both(case, torch.float32)
    travelled = (expected["params"] - start).norm()
    assert (ours["params"] - expected["params"]).norm() < 1e-4 * travelled
    for key in expected.keys() - {"params"}:
        zero = torch.full_like(expected[key], 0.0 if key == "stats.m" else 1.0)
        assert (ours[key] - expected[key]).norm() < 1e-4 * (expected[key] - zero).norm(), key


def test_every_algorithm_is_checked():
    elsewhere = {"fedbuff", *(name.partition(",")[0] for name in FAMILY)}  # tests/runs, test_family.py
    assert {case.split()[0] for case in CASES} | elsewhere == set(ALGORITHMS)
