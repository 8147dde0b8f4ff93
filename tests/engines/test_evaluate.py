"""Scores are those of all samples, whatever the chunks and the number of workers; hand-computed where that is short."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines import select
from fedgbo.engines.evaluate import Scores
from fedgbo.runs.record import Record
from fedgbo.tasks.task import accuracy

SGD = fedgbo.FedAvg(fedgbo.SGD(0.1))
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Let two workers be two threads for models of any size."""
    monkeypatch.setattr(select, "WORTH_THREADS", 0)


def draw(count, features=3):
    x = RNG.normal(size=(count, features)).astype(np.float32)
    return x, (x[:, 0] + 0.5 * RNG.normal(size=count) > 0.4).astype(np.int64)


TRAIN, TEST = [draw(10) for _ in range(3)], draw(150)  # three chunks, the last of 22


def task(data=None, model=lambda: nn.Linear(3, 2), **more):
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=TEST) if data is None else data
    return fedgbo.Task("scored", data, model, batch_size=4, **more)


def both(task, **settings):
    """Run with one worker and with two; return the result, after a check that scores are the same bits."""
    one, two = (fedgbo.run(task, SGD, rounds=2, local_steps=2, workers=workers, **settings) for workers in (1, 2))
    for ours, theirs in zip(one.history, two.history, strict=True):
        assert (ours.loss, ours.accuracy, ours.scores) == (theirs.loss, theirs.accuracy, theirs.scores)
    return one


def outputs_of(result, x=TEST[0]):
    with torch.no_grad():
        return result.model()(torch.from_numpy(x))


def f1(outputs, targets):
    """A score that is no mean over samples."""
    found, wanted = outputs.argmax(1) == 1, targets == 1
    return 2 * (found & wanted).sum() / (found.sum() + wanted.sum())


def test_cross_entropy_and_accuracy_are_those_of_all_samples():
    result = both(task())
    outputs, y = outputs_of(result), torch.from_numpy(TEST[1])
    assert result.loss == pytest.approx(float(functional.cross_entropy(outputs.double(), y)), rel=1e-6)
    assert result.accuracy == float((outputs.argmax(1) == y).double().mean())
    assert result.history[-1].scores == {"accuracy": result.accuracy}


def test_ignored_targets_count_nowhere():
    x, y = TEST
    kept = np.arange(150) < 5  # so that two of the chunks have nothing that counts
    some = fedgbo.FederatedData.from_clients(train=TRAIN, test=(x, np.where(kept, y, -100)))
    few = fedgbo.FederatedData.from_clients(train=TRAIN, test=(x[:5], y[:5]))
    ignoring, without = both(task(some)), both(task(few))
    assert ignoring.loss == pytest.approx(without.loss, rel=1e-6)
    assert ignoring.accuracy == without.accuracy
    none = fedgbo.FederatedData.from_clients(train=TRAIN, test=(x, np.full(150, -100)))
    with pytest.raises(fedgbo.DataError, match="the test set has no target that counts for the loss"):
        fedgbo.run(task(none), SGD, rounds=1)


def test_labels_beside_ignored_ones_are_still_checked():
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=(TEST[0], np.where(TEST[1] > 0, -5, -100)))
    with pytest.raises(fedgbo.DataError, match="the test labels go from -5 to -5"):
        fedgbo.run(task(data), SGD, rounds=1)


def test_probabilities_as_targets():
    x, y = TEST
    chances = np.stack([1 - 0.9 * y, 0.9 * y], axis=1).astype(np.float32)
    train = [(x, np.stack([1 - y, y], axis=1).astype(np.float32)) for x, y in TRAIN]
    result = both(task(fedgbo.FederatedData.from_clients(train=train, test=(x, chances))))
    expected = functional.cross_entropy(outputs_of(result).double(), torch.from_numpy(chances).double())
    assert result.loss == pytest.approx(float(expected), rel=1e-6)


def test_weighted_losses_and_f1_are_computed_from_all_outputs():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0]))
    result = both(task(loss=weighted, metric={"f1": f1, "accuracy": accuracy}))
    outputs, y = outputs_of(result), torch.from_numpy(TEST[1])
    assert result.loss == pytest.approx(float(weighted(outputs, y)), rel=1e-6)
    assert result.accuracy == pytest.approx(float(f1(outputs, y)), rel=1e-6)
    assert list(result.history[-1].scores) == ["f1", "accuracy"]
    assert result.history[-1].scores["accuracy"] == float((outputs.argmax(1) == y).double().mean())
    chunks = [float(weighted(outputs[k : k + 64], y[k : k + 64])) * len(y[k : k + 64]) / 150 for k in (0, 64, 128)]
    assert abs(result.loss - sum(chunks)) > 1e-5  # what it was before


def test_a_metric_that_is_not_in_a_dict_has_the_name_of_its_function():
    assert list(task(metric=f1).metrics) == ["f1"]
    assert list(task(metric=lambda outputs, targets: 1.0).metrics) == ["metric"]
    assert list(task().metrics) == ["accuracy"]
    result = fedgbo.run(task(metric=f1), SGD, rounds=1)
    assert result.history[-1].metric == "f1"
    assert f"test f1 {result.accuracy:.4g}, best" in repr(result)


def test_pairs_are_added_up():
    def squares(outputs, targets):
        return (outputs[:, 0] - targets).square().sum(), len(targets)

    def kept(outputs, targets):  # 1.0 for 128 samples of whole chunks, and nothing for the last 22
        return (float(len(targets)), len(targets)) if len(targets) != 22 else (0.0, 22)

    result = both(task(loss=squares, metric=kept))
    error = (outputs_of(result)[:, 0].double() - torch.from_numpy(TEST[1])).square().mean()
    assert result.loss == pytest.approx(float(error), rel=1e-6)
    assert result.accuracy == 128 / 150


class OwnLoss(nn.Module):
    """Returns its loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, labels):
        scores = self.layer(x)
        return {"loss": functional.cross_entropy(scores, labels), "logits": scores}


def test_outputs_that_cannot_be_concatenated_give_a_mean_and_a_note():
    train = [({"x": x, "labels": y}, None) for x, y in TRAIN]
    data = fedgbo.FederatedData.from_clients(train=train, test=({"x": TEST[0], "labels": TEST[1]}, None))
    result = both(task(data, OwnLoss, loss=lambda outputs, targets: outputs["loss"]))
    plain = both(task())
    assert result.loss == pytest.approx(plain.loss, rel=1e-5)  # the loss is a mean over samples here
    assert "loss: mean over chunks of 64 samples of the test set" in result.history[-1].note
    assert plain.history[-1].note is None


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Wrapped(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return Output(super().forward(x))


def test_output_objects_are_concatenated_too():
    metric = {"f1": lambda outputs, targets: f1(outputs.logits, targets), "accuracy": accuracy}
    result = both(task(model=Wrapped, metric=metric))
    assert "mean over" not in (result.history[-1].note or "")
    plain = both(task(metric={"f1": f1, "accuracy": accuracy}))
    assert (result.loss, result.history[-1].scores) == (plain.loss, plain.history[-1].scores)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda o, t: 1 / 0, r"the metric 'metric' fails on outputs \(float32 .*\): ZeroDivisionError"),
        (lambda o, t: o, r"the metric 'metric' must return a number or a pair .*tensor of shape \(150, 2\)"),
        (lambda o, t: None, "must return a number or a pair .sum, count., not None"),
        (lambda o, t: (1, 1) if len(t) < 22 else 0.5, "returned a pair .sum, count. first, and then 0.5"),
    ],
)
def test_wrong_metrics_are_named(metric, message):
    with pytest.raises(fedgbo.DataError, match=message):
        fedgbo.run(task(metric=metric), SGD, rounds=1)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("f1", "metric must be a function of .outputs, targets., a dict .*not 'f1'"),
        ({}, "metric must be a function"),
        ({"f1": 3}, "metric must be a function"),
        ({"loss": f1}, "a metric's name must be a string without dots and must not be 'loss', not 'loss'"),
        ({"f.1": f1}, "not 'f.1'"),
    ],
)
def test_metrics_are_functions_with_names(metric, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        task(metric=metric)


def test_a_metric_that_is_not_a_number_is_noted():
    result = both(task(metric={"auc": lambda o, t: math.nan, "f1": f1}))
    record = result.history[-1]
    assert (record.accuracy, list(record.scores)) == (None, ["f1"])
    assert record.note == "the metric 'auc' is nan on the test set"
    assert Record.of_line(record.line()) == record


def test_low_precision_is_summed_in_float32():
    x, y = np.zeros((150, 3), np.float32), np.zeros(150, np.int64)
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=(x, y))
    result = fedgbo.run(task(data, lambda: nn.Linear(3, 2, bias=False).bfloat16()), SGD, rounds=1)
    assert result.loss == pytest.approx(math.log(2), rel=1e-6)  # bfloat16 would add 64 of them up to within 1 %


def test_models_and_data_that_draw_in_evaluation_give_the_same_bits():
    class Sampling(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 2)

    first = both(task(model=lambda: Sampling(3, 2)))
    assert first.loss == both(task(model=lambda: Sampling(3, 2))).loss


def test_without_a_test_set_nothing_is_scored():
    record = both(task(fedgbo.FederatedData.from_clients(train=TRAIN))).history[-1]
    assert (record.loss, record.accuracy, record.scores) == (None, None, {})
    assert record.train_loss > 0
    assert Record.of_line(record.line()) == record


def test_each_client_is_scored_on_its_own_samples():
    x, y = TEST
    tests = [(x[:100], y[:100]), None, (x[100:], y[100:])]
    apart = both(task(fedgbo.FederatedData.from_clients(train=TRAIN, client_tests=tests)))
    assert apart.loss == pytest.approx(both(task()).loss, rel=1e-6)  # all clients' samples together
    outputs = outputs_of(apart).argmax(1).numpy()
    own = [float((outputs[:100] == y[:100]).mean()), float((outputs[100:] == y[100:]).mean())]
    scores = apart.history[-1].scores
    assert scores["clients.accuracy.mean"] == pytest.approx(sum(own) / 2)
    assert scores["clients.accuracy.worst_decile"] == pytest.approx(min(own))
    assert scores["clients.accuracy.spread"] == pytest.approx(abs(own[0] - own[1]) / 2)
    beside = both(task(fedgbo.FederatedData.from_clients(train=TRAIN, test=(x[:9], y[:9]), client_tests=tests)))
    assert beside.history[-1].scores["clients.accuracy.mean"] == scores["clients.accuracy.mean"]
    assert beside.accuracy == float((outputs[:9] == y[:9]).mean())


def test_the_worst_decile_is_the_mean_of_a_tenth_of_the_clients():
    clients = {c: {"loss": float(c), "accuracy": c / 20} for c in range(20)}
    summary = Scores(clients=clients).summary()
    assert summary["accuracy"]["worst_decile"] == pytest.approx((0 + 0.05) / 2)
    assert summary["loss"]["worst_decile"] == pytest.approx((19 + 18) / 2)
    assert summary["loss"]["spread"] == pytest.approx(math.sqrt((20**2 - 1) / 12))


def test_scores_travel_between_processes():
    scores = Scores({"loss": 0.1, "f1": None}, {"loss": 1 / 3}, {4: {"loss": 0.2}}, "a note")
    assert Scores.of_content(scores.content()) == scores
    assert json.loads(scores.content())[3] == "a note"


def test_a_validation_part_has_scores_of_its_own_and_decides_what_is_best():
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=TEST).split_validation(0.3)
    result = both(task(data))
    x, y = data.validation.samples.batch(np.arange(9))
    record = result.history[-1]
    assert record.validation_accuracy == float((outputs_of(result, x.numpy()).argmax(1) == y).double().mean())
    assert record.scores["validation.accuracy"] == record.validation_accuracy
    assert result.best.validation_accuracy == max(r.validation_accuracy for r in result.history)


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_local_buffers_need_test_sets_of_clients():
    with pytest.raises(fedgbo.ConfigError, match=r"clients are scored separately: give .* client_tests="):
        fedgbo.run(task(model=normed, buffers="local"), SGD, rounds=1)
    assert both(task(fedgbo.FederatedData.from_clients(train=TRAIN), normed, buffers="local")).loss is None


def test_local_buffers_score_each_client_with_its_own(tmp_path):
    """After one round of one client, that client alone has other statistics than at the beginning."""
    data = fedgbo.FederatedData.from_clients(train=TRAIN, test=TEST, client_tests=[TEST] * 3).split_validation(0.2)
    scored = task(data, normed, buffers="local", metric={"spread": lambda outputs, targets: float(outputs.std())})
    result = both(scored)
    assert result.history[0].scores["clients.spread.spread"] == 0.0
    assert result.history[-1].scores["clients.spread.spread"] > 0.0
    assert result.history[-1].validation_loss > 0
    first = fedgbo.run(scored, SGD, rounds=1, local_steps=2, out=tmp_path / "run")
    again = fedgbo.run(scored, SGD, rounds=2, local_steps=2, out=tmp_path / "run", resume=True)
    assert first.history[0].scores == result.history[0].scores
    assert again.history[-1].scores == result.history[-1].scores
