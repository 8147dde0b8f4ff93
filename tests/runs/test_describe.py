import textwrap

import numpy as np
import pytest

import fedgbo
from fedgbo.algorithms import ALGORITHMS, PAPER
from fedgbo.optimisers import OPTIMISERS
from fedgbo.runs.config import RunConfig
from fedgbo.runs.describe import build, describe, load
from fedgbo.runs.steps import steps_of
from tests.examples import ALGORITHMS as ALGORITHM_EXAMPLES
from tests.examples import OPTIMISERS as EXAMPLES

OBJECTS = [
    fedgbo.FedAvg(fedgbo.SGD(lr=0.1)),
    fedgbo.FedProx(fedgbo.SGD(lr=0.1), mu=0.5),
    fedgbo.FedMAX(fedgbo.SGD(lr=0.1), beta=0.5),
    fedgbo.FedGBO(fedgbo.SGDm(lr=fedgbo.Step(0.1, every=5), beta=0.9), objective=[fedgbo.Proximal(0.1)]),
    fedgbo.AdaptiveFedOpt(client=fedgbo.SGD(lr=0.1), server=fedgbo.Adam(lr=0.1, beta1=0.9)),
    fedgbo.MFL(fedgbo.RMSProp(lr=0.1, beta=0.9)),
    fedgbo.Mimelite(fedgbo.Adam(lr=0.1, beta1=0.9)),
    fedgbo.MimeXlite(fedgbo.Adam(lr=0.1, beta1=0.9), objective=[fedgbo.MaxEntropy(1.0)]),
    fedgbo.SCAFFOLD(fedgbo.SGD(lr=0.1), server_lr=fedgbo.Exponential(1.0, factor=0.9)),
    *(ALGORITHM_EXAMPLES[name] for name in sorted(set(ALGORITHMS) - {*PAPER, "scaffold"})),
]


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
def test_there_and_back(thing):
    assert describe(build("algorithm", describe(thing))) == describe(thing)


def test_every_catalogue_entry_is_described():
    assert {describe(thing)["name"] for thing in OBJECTS} == set(ALGORITHMS)
    assert {describe(thing)["name"] for thing in EXAMPLES.values()} == set(OPTIMISERS)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "fedgob"}, "unknown algorithm 'fedgob'; did you mean 'fedgbo'"),
        ({"name": "fedgbo"}, "algorithm fedgbo needs optimiser"),
        ({}, "algorithm needs a name"),
        ({"name": "fedgbo", "optimiser": {"name": "adma"}}, "unknown optimiser 'adma'; did you mean 'adam'"),
        ({"name": "fedgbo", "optimiser": {"name": "sgdm", "lr": 0.1}}, "optimiser sgdm needs beta"),
        ({"name": "fedgbo", "optimizer": {}}, "unknown setting 'optimizer'; did you mean 'optimiser'"),
        (
            {"name": "fedgbo", "optimiser": {"name": "sgd", "lr": {"name": "stepp", "initial": 1}}},
            "unknown schedule 'stepp'",
        ),
        ({"name": "fedgbo", "optimiser": {"name": "sgd", "lr": -1}}, "optimiser sgd: lr must be"),
    ],
)
def test_wrong_tables(table, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        build("algorithm", table)


def test_a_class_in_a_file_of_the_users(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent("""
        from dataclasses import dataclass
        import fedgbo

        @dataclass(frozen=True)
        class Slow(fedgbo.Optimiser):
            lr: float

            def update(self, params, stats, grad):
                return params - 0.1 * self.lr * grad
        """)
    )
    table = {"name": "fedgbo", "optimiser": {"name": f"{file}:Slow", "lr": 0.5}}
    algorithm = build("algorithm", table)
    assert algorithm.optimiser.lr == 0.5
    assert describe(algorithm)["optimiser"] == {"name": f"{file}:Slow", "lr": 0.5}
    with pytest.raises(fedgbo.ConfigError, match="unknown name 'Slo'; did you mean 'Slow'"):
        load(f"{file}:Slo")
    with pytest.raises(fedgbo.ConfigError, match="there is no file"):
        load(f"{tmp_path}/none.py:X")
    with pytest.raises(fedgbo.ConfigError, match=r"is not a .py file"):
        load(f"{tmp_path}/none.txt:X")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(fedgbo.ConfigError, match=r"failed: ZeroDivisionError"):
        load(f"{tmp_path}/broken.py:X")


def test_local_steps():
    assert steps_of(5, [0, 1], 0) == [5, 5]
    assert steps_of([3, 4, 5], [0, 2], 9) == [3, 5]
    assert steps_of(lambda t, c: 10 * t + c, [1, 2], 3) == [31, 32]
    assert steps_of(lambda client, round: 10 * round + client, [1, 2], 3) == [31, 32]
    assert steps_of(lambda client: client + 1, [1, 2], 3) == [2, 3]
    assert steps_of(lambda c: c + 1, [1, 2], 3) == [2, 3]
    assert steps_of(lambda round: round, [1, 2], 3) == [3, 3]
    assert steps_of(fedgbo.Exponential(10, factor=0.5), [0], 2) == [2]
    assert steps_of(fedgbo.Exponential(10, factor=0.5), [0], 20) == [1]


def test_a_fixed_random_sample_of_the_test_set():
    whole = RunConfig(task={"name": "digits"}, algorithm={"name": "fedavg"}, rounds=1)
    some = whole.model_copy(update={"test_samples": 50}).build_task().data.test
    assert len(some) == 50
    assert some.batch(np.arange(50))[1].tolist() == some.batch(np.arange(50))[1].tolist()
    again = whole.model_copy(update={"test_samples": 50}).build_task().data.test
    assert again.rows.tolist() == some.rows.tolist()
    assert len(whole.model_copy(update={"test_samples": 10**6}).build_task().data.test) == 360
    with pytest.raises(fedgbo.ConfigError, match="test_samples must be a whole number"):
        whole.model_copy(update={"test_samples": 0}).build_task()


def test_values_of_numpys():
    lr, steps = np.float32(0.5), np.int64(2)
    assert describe(fedgbo.FedAvg(fedgbo.SGD(lr=lr)))["optimiser"]["lr"] == 0.5
    assert describe(fedgbo.FixedSize(steps)) == {"name": "fixedsize", "clients_per_round": 2}
    assert fedgbo.Exponential(np.float32(0.5), np.float64(0.5))(1) == 0.25
    assert describe(np.arange(3))["shape"] == [3]


def test_parts_of_a_pipeline_are_named_in_full(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import fedgbo\n\nclass Same(fedgbo.Transform):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        task={"name": "digits"},
        algorithm={"name": "fedavg", "optimiser": {"name": "sgd", "lr": 0.1}},
        rounds=1,
        transforms=["mine.py:Same"],
        aggregator="median",
    ).complete()
    assert config.transforms == [{"name": f"{tmp_path}/mine.py:Same"}]
    assert config.aggregator == {"name": "median"}
    assert config.sampler is None
