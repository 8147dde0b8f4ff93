"""fedgbo.evaluate: a model without a run; and the best round's parameters."""

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.engines import select
from fedgbo.runs.checkpoint import Checkpoint
from tests.engines.test_evaluate import SGD, TEST, TRAIN, normed, task


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Let two workers be two threads for models of any size."""
    monkeypatch.setattr(select, "WORTH_THREADS", 0)


@pytest.fixture(scope="module")
def scored():
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=TEST, client_tests=[TEST, None, TEST])
    return task(data.split_validation(0.2), normed)


@pytest.fixture(scope="module")
def result(scored):
    return fedgbo.run(scored, SGD, rounds=3, local_steps=2)


def test_every_form_of_a_model_has_the_scores_of_the_run(scored, result, tmp_path):
    last, file = result.history[-1], tmp_path / "model.safetensors"
    result.save(file)
    forms = [result, result.state, result.model(), result.model().state_dict(), file]
    for form in forms:
        scores = fedgbo.evaluate(form, scored)
        assert (scores.loss, scores.accuracy) == (last.loss, last.accuracy)
        assert scores.validation == {"loss": last.validation_loss, "accuracy": last.validation_accuracy}
        assert scores.clients == {}
    assert fedgbo.evaluate(result.params, scored, buffers=result.state.buffers) == scores
    assert fedgbo.evaluate(result.params.numpy(), scored, buffers=result.state.buffers, workers=1) == scores


def test_scores_of_clients(scored, result):
    scores = fedgbo.evaluate(result, scored, per_client=True)
    assert list(scores.clients) == [0, 2]
    assert scores.clients[0] == scores.clients[2] == pytest.approx(dict(scores.test))
    assert scores.summary()["accuracy"]["mean"] == result.history[-1].scores["clients.accuracy.mean"]


def test_each_client_trains_further_before_it_is_scored():
    """One local step of full-batch gradient descent, computed by torch."""
    data = fedgbo.FederatedData.from_clients(train=TRAIN, client_tests=[TEST, None, TEST])
    own = fedgbo.Task("linear", data, lambda: nn.Linear(3, 2), batch_size=None)
    params = 0.1 * torch.arange(8.0)
    x, y = torch.from_numpy(TEST[0]), torch.from_numpy(TEST[1])
    expected = {}
    for client in (0, 2):
        module = nn.Linear(3, 2)
        nn.utils.vector_to_parameters(params.clone(), module.parameters())
        step = torch.optim.SGD(module.parameters(), lr=0.5)
        inputs, targets = map(torch.from_numpy, TRAIN[client])
        nn.functional.cross_entropy(module(inputs), targets).backward()
        step.step()
        expected[client] = nn.functional.cross_entropy(module(x), y).item()
    scores = fedgbo.evaluate(params, own, personalise=1, optimiser=fedgbo.SGD(0.5))
    assert {client: scores.clients[client]["loss"] for client in (0, 2)} == pytest.approx(expected, rel=1e-5)
    assert scores.loss == pytest.approx(sum(expected.values()) / 2, rel=1e-5)
    assert scores == fedgbo.evaluate(params, own, personalise=1, optimiser=fedgbo.SGD(0.5), workers=2)
    adam = fedgbo.evaluate(params, own, personalise=3, optimiser=fedgbo.Adam(0.1, 0.9))
    assert adam.loss not in (scores.loss, fedgbo.evaluate(params, own).loss)


def test_buffers_move_with_personalisation(scored, result):
    one, two = (
        fedgbo.evaluate(result, scored, personalise=2, optimiser=fedgbo.SGD(0.1), workers=workers) for workers in (1, 2)
    )
    assert one == two
    assert one.clients[0] != one.clients[2]


@pytest.mark.parametrize(
    ("params", "more", "message"),
    [
        ("params", {}, r"buffers that training changes \(1.running_mean, .*give result.state"),
        ("half", {}, r"params must be a flat vector of 34 numbers, .* not of shape \(3,\)"),
        (3, {}, "params must be a result, a State, .* not int"),
        ("state", {"personalise": 3}, "personalise=, a number of local steps, and optimiser=.*must be given together"),
        ("state", {"personalise": 0, "optimiser": fedgbo.SGD(0.1)}, "personalise must be"),
    ],
)
def test_what_cannot_be_evaluated(scored, result, params, more, message):
    given = {"params": result.params, "half": result.params[:3], "state": result.state}.get(params, params)
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.evaluate(given, scored, **more)


def test_clients_need_test_samples():
    with pytest.raises(fedgbo.ConfigError, match="clients are scored on their own test samples"):
        fedgbo.evaluate(torch.zeros(8), task(), per_client=True)
    data = fedgbo.FederatedData.from_clients(train=TRAIN, client_tests=[TEST] * 3)
    local = task(data, normed, buffers="local")
    trained = fedgbo.run(local, SGD, rounds=1)
    for more in ({}, {"personalise": 1, "optimiser": fedgbo.SGD(0.1)}):
        with pytest.raises(fedgbo.ConfigError, match="the statistics of each client are needed"):
            fedgbo.evaluate(trained, local, **more)


def worsening():
    """A task whose accuracy goes up and down at a large rate."""
    return task(model=normed)


def test_the_best_parameters_are_kept_and_survive_a_resume(tmp_path):
    settings = {"rounds": 8, "local_steps": 5, "keep_best": True, "seed": 1}
    fast = fedgbo.FedAvg(fedgbo.SGD(0.8))
    whole = fedgbo.run(worsening(), fast, **settings)
    assert 0 < whole.best.round < 7  # so that the best is not the last
    best = fedgbo.evaluate(whole.best_state, worsening())
    assert (best.loss, best.accuracy) == (whole.best.loss, whole.best.accuracy)
    x = torch.from_numpy(TEST[0])
    assert float((whole.model(best=True)(x).argmax(1) == torch.from_numpy(TEST[1])).double().mean()) == best.accuracy

    def interrupt(progress):
        if progress.ledger.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedgbo.run(worsening(), fast, **settings, out=tmp_path / "run", callbacks=[interrupt])
    resumed = fedgbo.run(worsening(), fast, **settings, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.best_params, whole.best_params)
    assert torch.equal(resumed.best_state.buffers, whole.best_state.buffers)
    (newest, *_) = sorted((tmp_path / "run" / "checkpoints").glob("*"), reverse=True)
    assert torch.equal(Checkpoint.load(newest).best.params, whole.best_params)


def test_the_best_parameters_must_be_kept_from_the_beginning(tmp_path):
    fedgbo.run(worsening(), SGD, rounds=1, out=tmp_path / "run")
    with pytest.raises(fedgbo.RunFolderError, match="was started without keep_best"):
        fedgbo.run(worsening(), SGD, rounds=2, out=tmp_path / "run", resume=True, keep_best=True)
    without = fedgbo.run(worsening(), SGD, rounds=2, out=tmp_path / "run", resume=True)
    with pytest.raises(fedgbo.ConfigError, match="were not kept; run with keep_best=True"):
        without.best_params  # noqa: B018
