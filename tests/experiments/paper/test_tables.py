"""The tables against the print, and Table 2's text against the optimisers' code."""

import pytest
import torch

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.paper import TABLES
from fedgbo.experiments.paper.cost_tables import (
    example,
    example_optimiser,
    printed_rows,
    significant,
    symbols,
    tasks,
)
from fedgbo.experiments.paper.formula_table import assignments, evaluate, steps
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.table import UNEXPLAINED, Cell, Table

SYMBOLS = {"lr": "η", "beta": "β", "beta1": "β₁", "beta2": "β₂", "eps": "ε"}
DIFFERENT = {
    "table2": {"RMSProp Tracking", "Adam Tracking"},
    "table7": {"Sent140 Mimelite RMSProp", "Sent140 Mimelite SGDm"},
}
PRINTED = {"table1": 21, "table2": 12, "table3": 24, "table6": 6, "table7": 52, "table8": 48}


@pytest.mark.parametrize("name", TABLES)
def test_every_printed_value_but_the_known_ones_agrees(name):
    table = TABLES[name]()
    assert {place for place, cell in table.placed() if cell.differs} == DIFFERENT.get(name, set())
    assert sum(cell.published is not None for _, cell in table.placed()) == PRINTED[name]


@pytest.mark.parametrize("name", TABLES)
def test_every_difference_is_explained(name):
    table = TABLES[name]()
    assert UNEXPLAINED not in {footnote.text for footnote in table.footnotes()}
    for place in DIFFERENT.get(name, ()):
        assert place in table.summary()


def test_every_typed_number_of_tables_7_and_8_is_compared():
    for name in ("table7", "table8"):
        typed = sorted(
            value
            for row in printed_rows(name)
            for key, value in row.items()
            if key not in ("Task", "Algorithm") and value
        )
        assert typed == sorted(cell.published for _, cell in TABLES[name]().placed() if cell.published is not None)


def test_a_cell_of_table_7_by_hand():
    cells = dict(TABLES["table7"]().placed())
    cell = cells["Sent140 Mimelite RMSProp"]
    assert cell.exact == 10 * (8 * 3 * 10_000 + 5 * 10_002) + 15 * 3 * 10_000 == 3_350_100
    assert (cell.ours, cell.published) == ("0.0335", "0.0350")
    assert cells["FEMNIST MimeXlite Adam"].exact == 10 * (32 * 3 * 3_305_280 + 8 * 870_334) + 32 * 3 * 3_305_280


def test_table_1_as_the_algorithms_are():
    cells = {place: cell.ours for place, cell in TABLES["table1"]().placed()}
    assert [cells[f"Mimelite {what}"] for what in ("Download", "Upload", "Memory")] == [
        "x, s",
        "x, ∇f",
        "O(2|x| + |s|)",
    ]
    assert [cells[f"FedGBO {what}"] for what in ("Download", "Upload", "Memory")] == ["x, s", "x", "O(|x| + |s|)"]


@pytest.mark.parametrize("name", ["sgd", "sgdm", "nesterov", "rmsprop", "adagrad", "adam"])
def test_docstrings_say_what_the_code_does(name):
    optimiser, text = example_optimiser(name), steps(OPTIMISERS[name])
    torch.manual_seed(0)
    y, g, delta = torch.rand(3, 6, dtype=torch.float64)
    stats = {key: torch.rand(6, dtype=torch.float64) for key in optimiser.init(y)}
    values = {symbol: getattr(optimiser, key) for key, symbol in SYMBOLS.items() if hasattr(optimiser, key)}
    values |= stats | {"g": g, "K": 4.0, "x_t": delta, "x_{t+1}": torch.zeros_like(delta)}
    torch.testing.assert_close(y - optimiser.update(y, stats, g), evaluate(text["U"], values))
    torch.testing.assert_close(optimiser.invert(stats, delta, 4.0), evaluate(text["I"], values))
    if stats:
        tracked = {key: evaluate(formula, values) for key, formula in assignments(text["T"]).items()}
        torch.testing.assert_close(dict(optimiser.track(stats, g)), tracked)
    else:
        assert text["T"] == "none"


def test_examples_have_formulas_and_counts():
    assert repr(example_optimiser("sgdm")) == "SGDm(lr=0.5, beta=0.5)"
    assert steps(OPTIMISERS["sgdm"])["U"] == "η (β m + (1 - β) g)"
    assert symbols(example("mimelite", "adam")) == ("x, s", "x, ∇f", "O(2|x| + |s|)")


def test_an_optimiser_without_formulas_is_named():
    class Bare(OPTIMISERS["sgd"]):
        """Says nothing."""

    with pytest.raises(ConfigError, match=r"Bare's docstring has no line 'U: \.\.\.'"):
        steps(Bare)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50.2134, "50.2"),
        (0.029001, "0.0290"),
        (2177.7, "2180"),
        (0.0335001, "0.0335"),
        (0.02900, "0.0290"),
        (2178.6, "2180"),
        (99.96, "100"),
        (1.0, "1.00"),
    ],
)
def test_three_significant_figures(value, text):
    assert significant(value) == text


def test_an_unexplained_difference_says_so():
    table = Table(
        "t", "T", ("A", "B"), ((Cell("row"), Cell.compared("1", "2")), (Cell("other"), Cell.compared("3", "3")))
    )
    assert [(note.number, note.places, note.text) for note in table.footnotes()] == [(1, ("row B",), UNEXPLAINED)]
    assert table.summary() == "1 of 2 values agree with the printed ones (in brackets); these differ: row B."


def test_tasks_are_named_as_ours():
    assert list(tasks()) == ["cifar100", "sent140", "femnist", "shakespeare"]
