"""Algorithms and optimisers against the references of family.py: to 1e-9 in float64, full and partial participation."""

import numpy as np
import pytest
import torch

import fedgbo
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.memory import ClientMemory
from tests.algorithms import family
from tests.algorithms.family import LR, ROUNDS, SEED, SIZES, K, N, task

SGD = fedgbo.SGD(LR)
HEAD = [(12, 15)]
ALGORITHMS = {
    "fedcm": (fedgbo.FedCM(SGD, alpha=0.3, server_lr=0.8), family.fedcm, {}),
    "averaged": (fedgbo.Averaged(fedgbo.FedGBO(fedgbo.SGDm(LR, 0.8)), decay=0.35), family.averaged, {"decay": 0.35}),
    "fedsam": (fedgbo.FedSAM(SGD, rho=0.2, server_lr=0.9), family.fedsam, {}),
    "mofedsam": (fedgbo.MoFedSAM(SGD, alpha=0.3, rho=0.2, server_lr=0.8), family.mofedsam, {}),
    "scaffold": (fedgbo.SCAFFOLD(SGD, server_lr=0.8), family.scaffold, {}),
    "fednova": (fedgbo.FedNova(SGD, server_lr=0.8), family.fednova, {}),
    "feddyn": (fedgbo.FedDyn(SGD, alpha=0.4), family.feddyn, {}),
    "ghbm": (fedgbo.GHBM(SGD, beta=0.8, tau=2), family.ghbm, {}),
    "qfedavg": (fedgbo.QFedAvg(SGD, q=1.5), family.qfedavg, {}),
    "mime": (fedgbo.Mime(fedgbo.SGDm(LR, 0.7)), family.mime, {}),
    "fedavgm": (fedgbo.FedAvgM(SGD, fedgbo.SGDm(0.5, 0.8)), family.server_optimiser, {"rule": "sgdm"}),
    "fedadam": (fedgbo.FedAdam(SGD, fedgbo.Adam(0.5, 0.8, 0.9, 0.1)), family.server_optimiser, {"rule": "adam"}),
    "fedyogi": (fedgbo.FedYogi(SGD, fedgbo.Yogi(0.5, 0.8, 0.9, 0.1)), family.server_optimiser, {"rule": "yogi"}),
    "fedadagrad": (fedgbo.FedAdagrad(SGD, fedgbo.AdaGrad(0.5, 0.1)), family.server_optimiser, {"rule": "adagrad"}),
    **{
        f"fed{rule}, v from the square of tau": (
            algorithm(SGD, optimiser(0.5, *betas, eps=0.1, initial=0.1**2)),
            family.server_optimiser,
            {"rule": rule, "initial": 0.1**2},
        )
        for rule, algorithm, optimiser, betas in (
            ("adam", fedgbo.FedAdam, fedgbo.Adam, (0.8, 0.9)),
            ("yogi", fedgbo.FedYogi, fedgbo.Yogi, (0.8, 0.9)),
            ("adagrad", fedgbo.FedAdagrad, fedgbo.AdaGrad, ()),
        )
    },
    "fedper": (fedgbo.FedPer(SGD, HEAD), family.fedper, {}),
    "fedbn": (fedgbo.FedBN(SGD, HEAD), family.fedper, {}),
    "fedrep": (fedgbo.FedRep(SGD, HEAD, head_steps=2), family.fedper, {"head_steps": 2}),
    "fedlin": (fedgbo.FedLin(SGD), family.fedlin, {}),
    "ditto": (fedgbo.Ditto(SGD, lam=0.6), family.ditto, {}),
    "apfl": (fedgbo.APFL(SGD, alpha=0.3), family.apfl, {}),
}


def personal_models(folder, algorithm, params):
    """The model of each client that keeps something, from the states that the run left."""
    checkpoint, _ = RunFolder(folder).latest()
    memory, initial = ClientMemory(folder / "clients", checkpoint.clients), algorithm.client_state(params)
    return {i: algorithm.personal(params, memory.load(i, initial)).numpy() for i in checkpoint.clients}


@pytest.mark.parametrize("size", [N, 3])
@pytest.mark.parametrize("engine", ["auto", "plain"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name, engine, size, tmp_path):
    algorithm, reference, more = ALGORITHMS[name]
    start = fedgbo.run(task(), algorithm, rounds=1, seed=SEED, callbacks=[fedgbo.Progress.stop]).params.numpy()
    settings = {"rounds": ROUNDS, "local_steps": K, "seed": SEED, "engine": engine, "out": tmp_path / "run"}
    params = fedgbo.run(task(size), algorithm, **settings).params
    expected = reference(start, size, **more)
    expected, own = expected if isinstance(expected, tuple) else (expected, {})
    assert np.abs(expected - start).max() > 0.01
    np.testing.assert_allclose(params.numpy(), expected, rtol=0, atol=1e-9)
    if own:
        models = personal_models(tmp_path / "run", algorithm, params)
        assert models
        for i, model in models.items():
            np.testing.assert_allclose(model, own[i], rtol=0, atol=1e-9)


def test_fednova_with_the_weights_of_the_paper():
    """p_i is a client's share of the cohort's samples, in the mean of differences and in tau_eff."""
    algorithm, settings = fedgbo.FedNova(SGD, server_lr=0.8), {"local_steps": K, "seed": SEED, "weights": "samples"}
    start = fedgbo.run(task(), algorithm, rounds=1, callbacks=[fedgbo.Progress.stop], **settings).params.numpy()
    found = fedgbo.run(task(), algorithm, rounds=ROUNDS, **settings).params.numpy()
    np.testing.assert_allclose(found, family.fednova(start, 3, samples=SIZES), rtol=0, atol=1e-9)


@pytest.mark.parametrize("algorithm", [fedgbo.Mime(SGD), fedgbo.FedLin(SGD)], ids=["mime", "fedlin"])
def test_the_control_variate_is_on_the_minibatch_of_the_gradient(algorithm):
    """The first local step is along c whatever the minibatch, as g(y) and g(x_t) cancel."""
    small, full = (
        fedgbo.run(task(batch_size=size), algorithm, rounds=ROUNDS, local_steps=1, seed=SEED).params
        for size in (2, None)
    )
    torch.testing.assert_close(small, full, rtol=0, atol=1e-12)


def test_both_models_of_apfl_are_on_the_same_minibatch(tmp_path):
    """With alpha 1 the own model takes the local steps of the global one, in its first round."""
    algorithm = fedgbo.APFL(SGD, alpha=1.0)
    settings = {"rounds": 1, "local_steps": 3, "seed": SEED, "out": tmp_path / "run"}
    params = fedgbo.run(task(1, batch_size=2), algorithm, **settings).params
    (own,) = personal_models(tmp_path / "run", algorithm, params).values()
    np.testing.assert_allclose(own, params.numpy(), rtol=0, atol=1e-12)


ADAM = {"lr": 0.2, "beta1": 0.8, "beta2": 0.9, "eps": 0.1}
OPTIMISERS = {
    "nesterov": fedgbo.Nesterov(0.2, 0.8),
    "adagrad": fedgbo.AdaGrad(0.2, 0.1),
    "yogi": fedgbo.Yogi(**ADAM),
    "amsgrad": fedgbo.AMSGrad(**ADAM, initial=0.01),
    "adamw": fedgbo.AdamW(**ADAM, weight_decay=0.3),
    "corrected adam": fedgbo.CorrectedAdam(**ADAM),
    "lion": fedgbo.Lion(0.2, 0.8, 0.9),
    "signum": fedgbo.Signum(0.2, 0.8),
}
TAKE_ANY = {
    "fedgbo": fedgbo.FedGBO,
    "mimelite": fedgbo.Mimelite,
    "mimexlite": fedgbo.MimeXlite,
    "mime": fedgbo.Mime,
    "mfl": fedgbo.MFL,
    "adaptivefedopt": lambda optimiser: fedgbo.AdaptiveFedOpt(SGD, optimiser),
}


@pytest.mark.parametrize("size", [N, 3])
@pytest.mark.parametrize("algorithm", TAKE_ANY)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name, algorithm, size):
    built = TAKE_ANY[algorithm](OPTIMISERS[name])
    result = fedgbo.run(task(size), built, rounds=ROUNDS, local_steps=K, seed=SEED)
    start = fedgbo.run(task(), built, rounds=1, seed=SEED, callbacks=[fedgbo.Progress.stop]).params.numpy()
    x, s = family.with_optimiser(algorithm, family.optimiser(name), start, size)
    assert np.abs(x - start).max() > 0.01
    np.testing.assert_allclose(result.params.numpy(), x, rtol=0, atol=1e-9)
    assert result.state.stats.keys() == s.keys()
    for key, value in s.items():
        np.testing.assert_allclose(result.state.stats[key].numpy(), value, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (fedgbo.CorrectedAdam(**ADAM), torch.optim.Adam, {}),
        (fedgbo.AdaGrad(0.2, 0.1, initial=0.5), torch.optim.Adagrad, {"initial_accumulator_value": 0.5}),
        (fedgbo.Nesterov(0.2, 0.8), torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "dampening": 0}),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_steps_that_are_torchs(ours, theirs, settings):
    """Where a docstring says that a step is torch's, it is."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    other, stats = torch.nn.Parameter(x.clone()), ours.init(x)
    usual = {"lr": 0.2 * (1 - 0.8)} if theirs is torch.optim.SGD else {"lr": 0.2, "eps": 0.1}
    betas = {"betas": (0.8, 0.9)} if theirs is torch.optim.Adam else {}
    optimiser = theirs([other], **usual, **betas, **settings)
    for t in range(6):
        g = torch.sin(x * (t + 1))
        other.grad = torch.sin(other.detach() * (t + 1))
        optimiser.step()
        x, stats = ours.step(x, stats, g)
    torch.testing.assert_close(x, other.detach(), rtol=0, atol=1e-12)
