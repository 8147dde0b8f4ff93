"""`fedgbo.compare`: its table, its differences, its frame, and what goes wrong."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedgbo
from tests.conftest import make_task

AVG, GBO = fedgbo.FedAvg(fedgbo.SGD(lr=0.3)), fedgbo.FedGBO(fedgbo.SGDm(lr=0.3, beta=0.5))
TASK = make_task(batch_size=4, clients_per_round=2)


@pytest.fixture(scope="module")
def comparison():
    return fedgbo.compare(TASK, [AVG, "fedgbo:sgdm lr=.3 beta=.5"], rounds=3, seeds=2, local_steps=3)


def test_the_runs_are_those_of_run(comparison):
    assert {label: list(seeds) for label, seeds in comparison.results.items()} == {
        "fedavg": [0, 1], "fedgbo-sgdm": [0, 1]
    }  # fmt: skip
    expected = fedgbo.run(TASK, GBO, rounds=3, local_steps=3, seed=1)
    assert torch.equal(comparison.results["fedgbo-sgdm"][1].params, expected.params)


def test_differences_by_hand(comparison):
    ours, theirs = (
        np.array([[r.accuracy for r in result.history] for result in comparison.results[label].values()])
        for label in ("fedgbo-sgdm", "fedavg")
    )
    best = [one[:, one.mean(axis=0).argmax()] for one in (ours, theirs)]
    difference = comparison.differences()["fedgbo-sgdm"]
    assert difference.difference == pytest.approx((best[0] - best[1]).mean())
    assert difference.seeds == 2
    assert comparison.differences(against="fedgbo-sgdm")["fedavg"].difference == pytest.approx(-difference.difference)
    with pytest.raises(fedgbo.ConfigError, match="unknown algorithm of this comparison 'fedavgg'; did you"):
        comparison.differences(against="fedavgg")


def drawn_points(spec):
    """All points of a picture with several layers."""
    if isinstance(spec, dict):
        own = spec.get("data", {}).get("values", []) if isinstance(spec.get("data"), dict) else []
        return [*own, *(point for key, part in spec.items() if key != "data" for point in drawn_points(part))]
    return [point for part in spec for point in drawn_points(part)] if isinstance(spec, list) else []


def test_table_frame_and_chart(comparison):
    assert repr(comparison) == "Comparison(fedavg, fedgbo-sgdm on small, 2 seeds)"
    assert [row[0].ours for row in comparison.table.rows] == ["fedavg", "fedgbo-sgdm"]
    assert "Difference" in str(comparison)
    frame = comparison.frame()
    assert len(frame) == 2 * 2 * 4
    assert set(frame["algorithm"]) == {"fedavg", "fedgbo-sgdm"}
    drawn = frame[(frame.algorithm == "fedavg") & (frame["round"] == 3)].accuracy.mean()
    points = [p for p in drawn_points(comparison.plot().to_dict()) if p.get("algorithm") == "FedAvg"]
    last = next(p for p in points if p.get("round") == 3 and "accuracy" in p)
    assert last["accuracy"] == pytest.approx(100 * drawn)
    assert comparison.plot("loss") is not None
    with pytest.raises(fedgbo.ConfigError, match="unknown score 'los'; did you mean 'loss'"):
        comparison.plot("los")


def test_labels(tmp_path):
    two = {"slow": "fedavg lr=.1", "fast": fedgbo.FedAvg(fedgbo.SGD(lr=np.float32(0.5)))}
    first = fedgbo.compare(TASK, two, rounds=1, seeds=[np.int64(7)], out=tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["fast-seed7", "slow-seed7"]
    again = fedgbo.compare(TASK, two, rounds=2, seeds=[7], out=tmp_path)
    assert [len(seeds[7].history) for seeds in again.results.values()] == [3, 3]
    assert first.results["fast"][7].config["algorithm"]["optimiser"]["lr"] == 0.5
    unnamed = fedgbo.compare(TASK, ["fedavg lr=.1", "fedavg lr=.2"], rounds=1, seeds=1)
    assert list(unnamed.results) == ["fedavg (lr=0.1)", "fedavg (lr=0.2)"]


def test_a_run_that_diverges_is_left_out_and_told():
    task = make_task(model=lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
    both = fedgbo.compare(task, {"good": AVG, "bad": fedgbo.FedAvg(fedgbo.SGD(lr=1e30))}, rounds=3, seeds=2)
    assert set(both.diverged["bad"]) == {0, 1}
    assert both.results["bad"] == {}
    assert "2 runs diverged" in repr(both)
    assert "diverged" in str(both)
    with pytest.raises(fedgbo.DivergenceError, match="all runs diverged; bad: "):
        fedgbo.compare(task, {"bad": fedgbo.FedAvg(fedgbo.SGD(lr=1e30))}, rounds=3, seeds=1)


def test_without_a_metric_there_are_frame_and_chart():
    x = torch.arange(12.0).reshape(6, 2) / 12
    data = fedgbo.FederatedData.from_clients(train=[(x, x), (x, x)], test=(x, x))
    task = fedgbo.Task("line", data, lambda: torch.nn.Linear(2, 2), loss=functional.mse_loss)
    both = fedgbo.compare(task, [AVG, GBO], rounds=2, seeds=2)
    assert str(both) == "Comparison(fedavg, fedgbo-sgdm on line, 2 seeds)"
    assert len(both.frame()) == 12
    assert both.plot() is not None
    with pytest.raises(fedgbo.ConfigError, match="task 'line' has no metric to compare by"):
        both.differences()


def test_fedgbo_with_sgd_is_fedavg_and_that_is_said():
    with pytest.warns(UserWarning, match="fedgbo with sgd trains the same model as fedavg"):
        fedgbo.compare(TASK, [AVG, fedgbo.FedGBO(fedgbo.SGD(lr=0.3))], rounds=1, seeds=1)


@pytest.mark.parametrize(
    ("algorithms", "settings", "message"),
    [
        ([], {}, "algorithms must be a list such as"),
        (3, {}, "algorithms must be a list such as"),
        ([3], {}, "an algorithm must be an object or a text such as 'fedavg lr=0.1', not 3"),
        ([AVG, AVG], {}, "fedavg is named twice with the same settings"),
        (["fedavg"], {}, "optimiser sgd needs lr; for example: lr=0.1"),
        (["fedavg lr=.1 rounds=3"], {}, r"rounds is the same for all; give it to fedgbo.compare\(rounds=...\)"),
        ({"x": "all"}, {}, "'all' stands for several algorithms; name each"),
        ([AVG], {"seeds": 0}, "seeds must be a whole number of at least 1"),
        ([AVG], {"seeds": [1, 1]}, "seeds must be a number, or a list of different seeds"),
        ([AVG], {"seed": 1}, "fedgbo.compare does not accept seed; give seeds="),
    ],
)
def test_wrong_comparisons(algorithms, settings, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        fedgbo.compare(TASK, algorithms, rounds=1, **settings)
    with pytest.raises(fedgbo.ConfigError, match=r"task must be a fedgbo\.Task"):
        fedgbo.compare("digits", [AVG], rounds=1)
