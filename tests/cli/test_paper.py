import csv
import json
import re

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from fedgbo.experiments.paper import TABLES
from fedgbo.reports.table import Cell, Table
from fedgbo.reports.terminal_table import plain_table


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["paper", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("style", ["text", "markdown", "csv", "json"])
def test_every_table_in_every_format(name, style):
    output = invoke(name, "--format", style)
    if style == "json":
        assert json.loads(output)["name"] == name
    elif style == "csv":
        lengths = {len(row) for row in csv.reader(output.splitlines())}
        assert len(lengths) == 1
    else:
        assert f"Table {name[-1]}: " in output
        assert "values agree with the printed ones" in output


def test_a_narrow_table_repeats_only_printed_values_that_differ():
    lines = invoke("table7").splitlines()
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if "Sent140" in line and "FedGBO" in line)
    assert lines[at].split() == ["Sent140", "FedGBO", "0.0290", "0.0290", "0.0320"]
    assert lines[at + 1].split() == ["Mimelite", "0.0335", "0.0335", "0.0365"]
    assert lines[at + 2].split() == ["(0.0350)", "[1]", "(0.0350)", "[1]"]
    assert "With --wide: all printed values." in lines
    assert "these differ (printed value in brackets): Sent140 Mimelite RMSProp" in " ".join(lines)
    assert "0.0290 (0.0290)" in invoke("table7", "--wide")
    assert "48 of 48 values agree with the printed ones." in invoke("table8").splitlines()  # none is in brackets


def test_table_7_says_which_two_cells_differ_and_why():
    output = " ".join(invoke("table7", "--wide").split())
    assert "50 of 52 values agree with the printed ones (in brackets)" in output
    assert "these differ: Sent140 Mimelite RMSProp, Sent140 Mimelite SGDm." in output
    assert output.count("0.0335 (0.0350) [1]") == 2
    assert "[1] Sent140 Mimelite RMSProp, Sent140 Mimelite SGDm: the printed value is wrong" in output


def test_table_2_shows_both_formulas():
    output = invoke("table2")
    assert "            Update     η g / (√v + ε)\n                       (η g / (√v + ε))\n" in output
    assert "Tracking   v <- β v + (1 - β) g²\n                       (v <- β v + (1 - β) g) [1]\n" in output
    assert "(1 / (1 - β₁) ((x_t - x_{t+1}) (√v + ε) / (η K) - β₁ m))\n" in output  # not wrapped in 80 columns


def test_a_file_takes_the_output(tmp_path):
    path = tmp_path / "table8.csv"
    assert invoke("table8", "--format", "csv", "--output", str(path)) == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8") == invoke("table8", "-f", "csv")


@pytest.mark.parametrize("place", ["", "no/such/folder.csv"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    result = CliRunner().invoke(app, ["paper", "table6", "--output", str(tmp_path / place)])
    assert result.exit_code == 2
    assert "cannot write there; give a file in a folder that exists" in result.stderr


def test_an_unknown_format_is_refused():
    assert CliRunner().invoke(app, ["paper", "table1", "--format", "yaml"]).exit_code == 2


@pytest.mark.parametrize("title", ["FedGBO [beta]", "a[/b]"])
def test_what_a_user_calls_his_tables_is_no_markup(title):
    made = plain_table(Table("x", title, ("Accuracy [test]",), ((Cell("1"),),)))
    assert title in made
    assert "Accuracy [test]" in " ".join(made.split())


def test_all_numbers_of_table_3_have_commas():
    shown = invoke("table3", "--wide")
    assert "21,876 (21,876)" in shown
    assert not re.search(r"\d{4}", shown)
