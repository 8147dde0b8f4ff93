"""Operations per parameter: the paper's for our own classes, counted as executed for others."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedgbo
from fedgbo.costs.flops import ModelCost
from fedgbo.costs.operations import Meter, step_operations
from fedgbo.engines.plain import InPlace, PlainEngine
from tests.conftest import make_task
from tests.engines.rounds import EXAMPLES, client_of, round_of, train

SGD, SGDM = fedgbo.SGD(0.1), fedgbo.SGDm(0.1, 0.9)
RMSPROP, ADAM = fedgbo.RMSProp(0.1, 0.9), fedgbo.Adam(0.1, 0.9)


@pytest.mark.parametrize(
    ("algorithm", "operations"),
    [
        (fedgbo.FedAvg(SGD), 2),
        (fedgbo.FedProx(SGD, 0.1), 5),
        (fedgbo.FedMAX(SGD, 0.1), 2),
        (fedgbo.AdaptiveFedOpt(SGD, ADAM), 2),
        (fedgbo.SCAFFOLD(SGD), 3),
        *((fedgbo.FedGBO(opt), ops) for opt, ops in ((SGD, 2), (SGDM, 5), (RMSPROP, 5), (ADAM, 8))),
        *((fedgbo.MFL(opt), ops) for opt, ops in ((SGD, 2), (SGDM, 8), (RMSPROP, 5), (ADAM, 11))),
        (fedgbo.FedGBO(SGDM, inverse=False), 6),
        (fedgbo.Mimelite(ADAM, objective=[fedgbo.Proximal(0.1), fedgbo.MaxEntropy(0.1)]), 11),
    ],
    ids=str,
)
def test_the_papers_counts(algorithm, operations):
    assert step_operations(algorithm) == operations
    gathered = train(PlainEngine(make_task(), algorithm, 0), algorithm, [0, 2], [3, 4])
    assert gathered.operations == operations * 7


class OwnTerm(fedgbo.Proximal):
    """A term that the paper has not."""


class OwnOptimiser(fedgbo.SGDm):
    """An optimiser that the paper has not."""


class OwnAvg(fedgbo.FedAvg):
    """An algorithm that the paper has not."""


def test_subclasses_are_not_taken_for_their_parents():
    for algorithm in (
        OwnAvg(SGD),
        fedgbo.FedGBO(OwnOptimiser(0.1, 0.9)),
        fedgbo.MFL(OwnOptimiser(0.1, 0.9)),
        fedgbo.FedAvg(SGD, objective=OwnTerm(0.1)),
    ):
        assert step_operations(algorithm) is None


@dataclass(frozen=True)
class Counted(fedgbo.FederatedAlgorithm):
    """K steps of y - 0.1 g (2 operations each), one difference, and other questions that cost no operation."""

    asks: bool = False

    def client_update(self, down, client):
        y = down.params
        for _ in range(client.steps):
            y = y - 0.1 * client.gradient(y)
        if self.asks:
            client.gradient(y, again=True)
            client.full_gradient(y)
            client.loss(y)
            y.clone(), torch.zeros_like(y), y.sum(), y.norm(), y[1:] + 1  # not as long as the model, or no arithmetic
        return fedgbo.State(down.params - y)


@pytest.mark.parametrize("asks", [False, True])
def test_a_users_algorithm_by_hand(asks):
    algorithm = Counted(asks)
    gathered = train(PlainEngine(make_task(), algorithm, 0), algorithm, [0, 1, 2], [3, 5, 3])
    assert gathered.operations == (2 * 3 + 1) + (2 * 5 + 1) + (2 * 3 + 1)


@pytest.mark.parametrize("descent", [None, InPlace()])
@pytest.mark.parametrize(("optimiser", "per_step"), [(SGD, 2), (SGDM, 3), (ADAM, 3)])
def test_descend_counts_its_affine_steps_however_they_are_taken(descent, optimiser, per_step):
    @dataclass(frozen=True)
    class Own(fedgbo.FederatedAlgorithm):
        def client_update(self, down, client):
            return fedgbo.State(down.params - client.descend(down.params, optimiser, optimiser.init(down.params)))

    engine = PlainEngine(make_task(), Own(), 0, descent=descent)
    operations = train(engine, Own(), [0], [4]).operations
    setting_up = train(engine, Own(), [0], [1]).operations - per_step
    assert operations == 4 * per_step + setting_up
    assert 1 <= setting_up <= 8  # the difference, and what affine computes once


def test_counting_changes_no_bit_and_happens_once_for_each_number_of_steps():
    algorithm = Counted(asks=True)
    engine = PlainEngine(make_task(batch_size=4), algorithm, 0)
    work = round_of(engine, algorithm, [1], [3])
    meter, seen = Meter(algorithm), []

    class Watching(Counted):
        def client_update(self, down, client):
            seen.append(type(client).__name__)
            return super().client_update(down, client)

    ups = [meter.client_update(Watching(True), work.down, client_of(engine, algorithm, 1, 3)) for _ in range(3)]
    meter.client_update(Watching(True), work.down, client_of(engine, algorithm, 1, 2))
    assert seen == ["_CountedClient", "SimulatedClient", "SimulatedClient", "_CountedClient"]
    assert {operations for _, operations in ups} == {7.0}
    assert all(torch.equal(up.params, ups[0][0].params) for up, _ in ups)


@pytest.mark.parametrize("engine", ["plain", "auto"])
def test_a_run_of_a_users_algorithm_has_flops(engine):
    record = fedgbo.run(make_task(), Counted(), rounds=2, local_steps=3, engine=engine).history[-1]
    macs, params, samples = 3 * 4 + 4 * 2, 26, 12
    assert record.flops == 2 * 4 * (3 * samples * 3 * macs + 7 * params)
    assert record.note is None


class Raises(nn.Linear):
    """A layer that cannot be copied."""

    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


class Stranger(nn.Module):
    """Fails where gradients are counted, but not in training: torch's counter sees every operation."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise ValueError("watched")
        return self.linear(x)


MODELS = {
    "weight_norm": lambda: nn.utils.weight_norm(nn.Linear(3, 2)),
    "parametrised weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 2)),
    "raises": lambda: Raises(3, 2),
    "stranger": Stranger,
}
UNCOUNTED = {"raises": "RuntimeError: not to be copied", "stranger": "ValueError: watched"}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_trained_and_counted_or_has_a_note(name):
    task = make_task(model=MODELS[name], batch_size=4)
    records = [
        fedgbo.run(task, EXAMPLES["fedgbo"], rounds=2, engine=engine).history[-1] for engine in ("plain", "auto")
    ]
    for record in records:
        assert record.round == 2
        assert (record.flops is None) == (record.counted_flops is None) == (record.note is not None)
        assert record.flops is None or record.flops > 0
    if name in UNCOUNTED:
        assert records[0].note == f"FLOPs could not be counted for this model: {UNCOUNTED[name]}"
        assert '"flops": null' in records[0].line()
        assert UNCOUNTED[name] in records[0].line()
        assert fedgbo.Record.of_line(records[0].line()) == records[0]


def test_counting_does_not_touch_the_module():
    torch.manual_seed(1)
    module, before = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)), torch.get_rng_state()
    cost = ModelCost.of(module, nn.functional.cross_entropy, torch.ones(5, 3), torch.zeros(5, dtype=torch.long))
    assert cost == ModelCost(macs=20, gradient_flops=2 * (20 + 20 + 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in module.parameters())
    assert module.training
