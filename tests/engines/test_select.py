from dataclasses import replace

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.bench.models import MODELS
from fedgbo.engines import select
from fedgbo.engines.drift import MeasuringEngine
from fedgbo.engines.one_call import OneCall, SparseDescent
from fedgbo.engines.plain import InPlace, PlainEngine
from fedgbo.engines.select import engine_for, explain
from fedgbo.engines.threads import ThreadedEngine
from fedgbo.native import library
from fedgbo.tasks import TASKS
from tests.conftest import make_task

AVG = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
LION = fedgbo.Lion(lr=0.01, beta1=0.9, beta2=0.99)


@pytest.mark.skipif(library() is None, reason="without a C compiler, sparse models take their steps in place")
@pytest.mark.parametrize(
    ("name", "workers", "kind", "descent"),
    [
        ("digits", 2, PlainEngine, OneCall),
        ("cifar100-synthetic", 1, PlainEngine, OneCall),
        ("cifar100-synthetic", 2, ThreadedEngine, OneCall),
        ("shakespeare-synthetic", 2, ThreadedEngine, InPlace),
        ("sent140-synthetic", 2, PlainEngine, SparseDescent),
    ],
)
def test_each_task_gets_its_engine(name, workers, kind, descent):
    engine = engine_for(TASKS[name](), AVG, 0, workers)
    assert type(engine) is kind
    assert type(getattr(engine, "plain", engine).descent) is descent


class Einsum(nn.Module):
    """A product that is no layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(784, 300))

    def forward(self, x):
        return torch.einsum("bi,io->bo", x.flatten(1), self.weight)


@pytest.mark.parametrize("name", ["mcmahan-cnn", "lstm", "transformer", "resnet18", "einsum"])
def test_two_workers_train_two_clients_of_a_large_model_at_a_time(name):
    task = MODELS["mlp"].task() if name == "einsum" else MODELS[name].task()
    task = replace(task, model=Einsum) if name == "einsum" else task
    assert type(engine_for(task, AVG, 0, 2)) is ThreadedEngine


def test_the_textbook_loop_can_be_forced():
    engine = engine_for(TASKS["digits"](), AVG, 0, 2, engine="plain")
    assert type(engine) is PlainEngine
    assert engine.descent is None
    assert engine.model.module is engine.model.original  # torch's own layers
    assert engine.model.network is None
    assert explain(engine).startswith(
        "Client.descend: one client at a time, the textbook loop, gradients by torch's auto"
    )
    with pytest.raises(
        fedgbo.ConfigError, match=r"unknown engine 'plian'; did you mean 'plain'\? \(known: auto, plain"
    ):
        fedgbo.run(make_task(), AVG, rounds=1, engine="plian")


def test_the_choice_is_explained(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    seen = []
    fedgbo.run(make_task(), AVG, rounds=1, workers=2, callbacks=[lambda progress: seen.append(progress.engine)])
    assert len(set(seen)) == 1
    steps = "all local steps of a client in one call of C code" if library() else "local steps in place, gradients by"
    assert seen[0].startswith(f"Client.descend: 2 clients at a time, one thread each, {steps}")
    assert "(a minibatch takes 240 multiply-adds, threads pay off from 0)" in seen[0]
    unknown = make_task(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)))
    assert "local steps in place, gradients by torch's autograd" in explain(engine_for(unknown, AVG, 0))
    term = engine_for(unknown, fedgbo.FedProx(fedgbo.SGD(0.1), 0.1), 0)
    assert "the textbook loop" in explain(term)
    assert "(the objective has the terms Proximal; there is one worker" in explain(term)
    measured = engine_for(make_task(), AVG, 0, 2, metrics=["cosine"])
    assert type(measured) is MeasuringEngine
    assert "drift is measured, which takes one client at a time" in explain(measured)


class Sizeless(nn.Linear):
    """A layer that no rule can count."""

    def __init__(self):
        super().__init__(3, 2)
        del self.in_features


def test_a_model_that_cannot_be_counted_is_trained_all_the_same():
    task = make_task(model=Sizeless)
    assert type(engine_for(task, AVG, 0, 2)) is PlainEngine
    record = fedgbo.run(task, AVG, rounds=1, workers=2).history[-1]
    assert record.flops is None
    assert record.note.startswith("FLOPs could not be counted for this model: AttributeError")


def test_workers_are_counted_from_one():
    with pytest.raises(fedgbo.ConfigError, match="workers must be a whole number of at least 1"):
        fedgbo.run(make_task(), AVG, rounds=1, workers=0)


@pytest.mark.parametrize(
    ("algorithm", "textbook"),
    [
        (fedgbo.FedGBO(LION, inverse=False), True),
        (fedgbo.FedGBO(fedgbo.SGDm(lr=0.1, beta=0.9)), False),
        (
            fedgbo.AdaptiveFedOpt(client=fedgbo.SGD(lr=0.1), server=fedgbo.Lion(lr=0.01, beta1=0.9, beta2=0.99)),
            False,
        ),  # the server's
    ],
)
def test_what_is_said_of_an_optimiser_that_is_not_affine(algorithm, textbook):
    choice = engine_for(TASKS["digits"](), algorithm, 0, 1, torch.device("cpu")).choice
    assert ("the textbook loop" in choice and "Lion: not affine in the gradient" in choice) == textbook
