"""The authors' settings: every row builds an algorithm with exactly its numbers."""

import csv
from collections import Counter
from dataclasses import fields, is_dataclass
from importlib.resources import files

import pytest

from fedgbo.algorithms import PAPER
from fedgbo.core.errors import ConfigError
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.presets import preset, presets
from fedgbo.runs.describe import build

PLACES = {  # where each of the authors' spellings must end up
    "lr": "optimiser.lr",
    "client_lr": "client.lr",
    "clr": "client.lr",
    "server_lr": "server.lr",
    "slr": "server.lr",
    "sbeta": "server.beta",
}


def numbers(algorithm) -> dict[str, float]:
    """All numbers of an algorithm and its optimisers by place."""
    found = {}
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if is_dataclass(value):
            found |= {f"{field.name}.{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        elif isinstance(value, float):
            found[field.name] = value
    return found


def authors_rows() -> list[dict[str, str]]:
    text = files("fedgbo.experiments").joinpath("presets", "paper.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def test_every_row_is_there():
    rows = presets("paper")
    assert len(rows) == 124
    assert Counter(row.task for row in rows) == {"cifar100": 30, "femnist": 30, "sent140": 28, "shakespeare": 36}
    assert {row.algorithm for row in rows} == set(PAPER)
    assert {row.optimiser for row in rows} == {"sgd", "sgdm", "rmsprop", "adam"}
    assert {row.local_steps for row in rows} == {10, 50}
    assert len({(row.task, row.algorithm, row.optimiser, row.local_steps) for row in rows}) == 124


@pytest.mark.parametrize("number", range(124))
def test_every_row_builds_exactly_its_numbers(number):
    row, authors = presets("paper")[number], authors_rows()[number]
    algorithm = build("algorithm", row.algorithm_table())
    assert type(algorithm).__name__ == authors["Algorithm"]
    server = row.algorithm == "adaptivefedopt"
    used = algorithm.server if server else algorithm.optimiser
    assert isinstance(used, Optimiser)
    assert type(used).__name__ == authors["Optimiser"]
    expected = {}
    for part in authors["Settings"].split(","):
        key, value = part.strip().split("=")
        own = row.algorithm in ("fedmax", "fedprox") and key in ("beta", "mu")
        place = key if own else PLACES.get(key) or f"{'server' if server else 'optimiser'}.{key}"
        expected[place] = float(value)
    if authors["Optimiser"] == "Adam":
        expected[f"{'server' if server else 'optimiser'}.initial"] = 1.0  # v starts at 1, which the table does not say
    assert numbers(algorithm) == expected


def test_two_rows_by_hand():
    row = preset("paper", "cifar100", "adaptivefedopt", "sgdm", 10)
    assert row is not None
    assert row.settings == {"server_lr": 1.0, "beta": 0.99, "lr": 0.1}
    row = preset("paper", "shakespeare", "fedmax", None, 50)
    assert row is not None
    assert row.algorithm_table() == {"name": "fedmax", "optimiser": {"name": "sgd", "lr": 0.1}, "beta": 0.1}


def test_what_the_paper_did_not_run_has_no_row():
    assert preset("paper", "sent140", "fedmax", None, 10) is None
    assert preset("paper", "cifar100", "mimexlite", "sgdm", 10) is None


def test_an_unknown_preset_names_the_known_ones():
    known = r"\(known: digits, field, paper, recommended\)"
    with pytest.raises(ConfigError, match=rf"unknown preset 'papre'; did you mean 'paper'\? {known}"):
        presets("papre")
