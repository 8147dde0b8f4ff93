"""The average of the server's models: by hand, what it leaves alone, and the errors of its settings."""

import pytest
import torch
from torch import nn

import fedgbo
from tests.conftest import make_task
from tests.examples import ALGORITHMS as EXAMPLES

SGD = fedgbo.SGD(lr=0.2)
TASK = make_task(clients=6, batch_size=5, clients_per_round=3, dtype=torch.float64)
BASES = sorted(EXAMPLES.keys() - {"averaged"})


def run(algorithm, task=TASK, **more):
    return fedgbo.run(task, algorithm, **({"rounds": 4, "local_steps": 3} | more))


class Counting(fedgbo.FedAvg):
    """A server whose model is 1 after the first round, 2 after the second, ..."""

    def server_update(self, server, mean, steps):
        return fedgbo.State(server.params.round() + 1)


def test_by_hand():
    """d is 1/10, 2/11 and 1/4 = decay: from 0, a is 0.9, 1.8 and 2.7."""
    state = fedgbo.Averaged(Counting(SGD), decay=0.25).init(torch.zeros(2, dtype=torch.float64))
    found = []
    for _ in range(3):
        state = fedgbo.Averaged(Counting(SGD), decay=0.25).server_update(state, None, 1)
        found.append(state.params[0].item())
    assert found == pytest.approx([0.9, 0.9 * 2 / 11 + 2 * 9 / 11, (0.9 * 2 / 11 + 2 * 9 / 11) / 4 + 3 * 3 / 4])
    assert state.stats["latest"].tolist() == [3, 3]
    assert state.stats["averaged"].tolist() == [3]


@pytest.mark.parametrize("name", BASES)
def test_the_base_trains_as_without_an_average(name):
    """All its vectors are those of a run without an average, bit for bit; and with decay 0 so is the model."""
    base, smooth, none = run(EXAMPLES[name]), *(run(fedgbo.Averaged(EXAMPLES[name], decay)) for decay in (0.9, 0.0))
    own = {key: value for key, value in smooth.state.stats.items() if key not in ("latest", "averaged")}
    assert own.keys() == base.state.stats.keys()
    assert all(torch.equal(value, base.state.stats[key]) for key, value in own.items())
    assert torch.equal(smooth.state.stats["latest"], base.params)
    assert not torch.equal(smooth.params, base.params)
    assert torch.equal(none.params, base.params)


@pytest.mark.parametrize("name", ["fedavg", "fedgbo", "mime", "scaffold", "fedsam"])
def test_costs_are_those_of_the_base(name):
    costs = [
        [(r.download_bytes, r.upload_bytes, r.flops, r.counted_flops) for r in run(algorithm).history]
        for algorithm in (EXAMPLES[name], fedgbo.Averaged(EXAMPLES[name]))
    ]
    assert costs[0] == costs[1]


def test_asynchronous_clients_train_from_the_latest_models():
    clock = fedgbo.Asynchronous(4, 2, max_staleness=3, spread=1.0)
    buffered = fedgbo.FedBuff(fedgbo.FedGBO(fedgbo.SGDm(0.2, 0.8)), max_staleness=3)
    base, smooth = (run(one, sampler=clock, rounds=8) for one in (buffered, fedgbo.Averaged(buffered, decay=0.9)))
    assert torch.equal(smooth.state.stats["latest"], base.params)


def test_a_resumed_run_goes_on_with_its_average(tmp_path):
    algorithm = fedgbo.Averaged(fedgbo.FedGBO(fedgbo.SGDm(0.2, 0.8)), fedgbo.Exponential(0.9, factor=0.99))
    run(algorithm, rounds=2, out=tmp_path / "run")
    resumed, whole = run(algorithm, rounds=5, out=tmp_path / "run", resume=True), run(algorithm, rounds=5)
    assert torch.equal(resumed.params, whole.params)


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedgbo.Averaged("fedavg"), "Averaged: base must be an algorithm, not 'fedavg'"),
        (lambda: fedgbo.Averaged(EXAMPLES["fedavg"], decay=1.0), "decay must be at least 0 and below 1, not 1.0"),
        (lambda: fedgbo.Averaged(EXAMPLES["averaged"]), "base must be an algorithm without an average of its own"),
        (lambda: fedgbo.FedBuff(EXAMPLES["averaged"]), r"must be outside: Averaged\(FedBuff\(...\)\)"),
        (
            lambda: fedgbo.run(make_task(model=normed), fedgbo.Averaged(EXAMPLES["fedavg"]), rounds=1),
            "the model has buffers that training changes, such as BatchNorm's",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        make()
