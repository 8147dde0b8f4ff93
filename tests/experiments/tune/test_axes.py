import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.tune.plan import DECAYS, ENTROPIES, PULLS, RATES, Axis, axes_of


def test_the_papers_grids():
    assert RATES == (10, 1, 0.1, 0.01, 0.001, 0.0001, 0.00001)
    assert DECAYS == (0.3, 0.6, 0.9, 0.99, 0.999, 0.9999)


@pytest.mark.parametrize(
    ("algorithm", "optimiser", "expected"),
    [
        ("fedavg", None, {"lr": RATES}),
        ("fedprox", "sgd", {"lr": RATES, "mu": PULLS}),
        ("fedmax", None, {"lr": RATES, "beta": ENTROPIES}),
        ("fedgbo", None, {"lr": RATES, "beta": DECAYS}),
        ("mfl", "rmsprop", {"lr": RATES, "beta": DECAYS}),
        ("mimelite", "adam", {"lr": RATES, "beta1": DECAYS}),
        ("fedgbo", "sgd", {"lr": RATES}),
        ("adaptivefedopt", "sgdm", {"lr": RATES, "server_lr": RATES, "beta": DECAYS}),
    ],
)
def test_what_is_searched_by_default(algorithm, optimiser, expected):
    axes, fixed = axes_of(algorithm, optimiser, [])
    assert {axis.name: axis.values for axis in axes} == expected
    assert {axis.name for axis in axes if axis.decay} == {name for name in expected if expected[name] is DECAYS}
    assert fixed == {}


def test_what_the_user_says_comes_first():
    axes, fixed = axes_of("fedgbo", "adam", ["beta1=0.9", "lr=0.01:1", "beta2=0.9,0.99", "eps=1e-4"])
    assert [(a.name, a.values, a.decay, a.range_only) for a in axes] == [
        ("lr", (0.01, 1), False, True),
        ("beta2", (0.9, 0.99), True, False),
    ]
    assert fixed == {"beta1": 0.9, "eps": 1e-4}


@pytest.mark.parametrize(
    "text", ["lr", "lr=", "=1", "lr=a", "lr=1:", "lr=1:0.1", "lr=1:2:3", "lr=1,1", "lr=nan,1", "lr=0.1:inf"]
)
def test_ranges_that_are_none(text):
    with pytest.raises(ConfigError, match=r"must be KEY=VALUE, KEY=VALUE,VALUE,... or KEY=LOW:HIGH"):
        axes_of("fedavg", None, [text])


def test_nothing_to_search():
    with pytest.raises(ConfigError, match="nothing to search"):
        axes_of("fedavg", None, ["lr=0.1"])


OWN = """
from dataclasses import dataclass
import fedgbo

@dataclass(frozen=True)
class Mine(fedgbo.FederatedAlgorithm):
    stride: float

    def client_update(self, down, client):
        return fedgbo.State(down.params * 0)
"""


def test_settings_of_the_users_own_need_a_range(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path / 'own.py'}:Mine"
    with pytest.raises(ConfigError, match=r"no range is known for stride; say where to search, e.g. stride=0.01:1"):
        axes_of(name, None, [])
    axes, _ = axes_of(name, None, ["stride=1:3"])
    assert [axis.name for axis in axes] == ["stride"]


def test_places_along_an_axis():
    rate = Axis(name="lr", values=(0.01, 1.0))
    decay = Axis(name="beta", values=(0.9, 0.999), decay=True)
    straight = Axis(name="mu", values=(0.0, 4.0))
    assert [rate.at(u) for u in (0, 0.5, 1)] == [0.01, 0.1, 1]
    assert [decay.at(u) for u in (0, 0.5, 1)] == [0.9, 0.99, 0.999]
    assert [straight.at(u) for u in (0, 0.5, 1)] == [0, 2, 4]
