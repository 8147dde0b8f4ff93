"""Each figure and each table that is made of runs, regenerated on the stand-ins at a small scale."""

import csv
import json

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("paper")]

SMALL = ["--stand-ins", "--scale", "0.0004", "--jobs", "1", "task.clients=12", "task.test_samples=60"]
SMALL += ["clients_per_round=2", "batch_size=2"]
SAID = "synthetic stand-ins for the data; scale 0.0004: 2 rounds, 2 seeds, at most 200 test samples"
SUFFIX = "stand-ins-scale0.0004-task.clients12-task.test_samples60-clients_per_round2-batch_size2"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


def call(*args):
    result = CliRunner().invoke(app, ["paper", *map(str, args)])
    assert result.exit_code == 0, result.output
    return result


def words(text):
    """A terminal's text without its line breaks."""
    return " ".join(text.split())


def figure(out, name, *args):
    output = call(name, *SMALL, "--out", out, *args).output
    part = "".join(f"-{value.replace(',', '-')}" for value in args[1::2])
    files = {kind: out / f"{name}-{SUFFIX}{part}{kind}" for kind in (".png", ".svg", ".pdf", "-curves.csv")}
    for file in files.values():
        assert f"wrote {file}\n" in output
        assert file.stat().st_size > 0
    assert all(said in files[".svg"].read_text() for said in SAID.split("; "))
    first, *rest = files["-curves.csv"].read_text().splitlines()
    assert SAID in first
    return list(csv.DictReader(rest))


def test_figure_1(out):
    rows = figure(out, "figure1", "--tasks", "sent140")
    assert {row["task"] for row in rows} == {"Sent140"}
    assert len({row["beta"] for row in rows}) == 5
    assert {row["round"] for row in rows} == {"1", "2"}
    assert all(0 <= float(row["cosine_distance"]) <= 2 for row in rows)


def test_figure_2_and_table_4_share_their_runs(out):
    part = ["--tasks", "sent140,shakespeare", "--optimisers", "sgdm"]
    rows = figure(out, "figure2", *part)
    panels = {(row["task"], row["optimiser"], row["algorithm"]) for row in rows}
    assert len(panels) == 6 + 7
    assert ("Shakespeare", "SGDm", "FedMAX") in panels
    result = call("table4", *SMALL, "--out", out, *part)
    assert "26 runs (26 finished)" in result.stderr
    assert SAID in words(result.stdout)
    files = {kind: out / f"table4-{SUFFIX}-sent140-shakespeare-sgdm.{kind}" for kind in ("md", "csv", "tex", "json")}
    assert all(SAID in file.read_text() for file in files.values())
    cells = json.loads(files["json"].read_text())["rows"]
    assert [(row["Task"]["ours"], row["Algorithm"]["ours"]) for row in cells][:2] == [
        ("Sent140", "FedAvg"),
        ("Sent140", "FedProx"),
    ]
    assert cells[0]["Max acc (%)"]["published"] == "75.2 ± 0.4"


def test_figure_3(out):
    rows = figure(out, "figure3", "--tasks", "sent140")
    assert {row["optimiser"] for row in rows} == {"RMSProp", "SGDm", "Adam"}
    assert {row["seeds"] for row in rows} == {"2"}


def test_table_5(out):
    small = [text.replace("clients_per_round=2", "clients_per_round=1") for text in SMALL]
    result = call("table5", *small, "--out", out, "--optimisers", "rmsprop")
    assert SAID in words(result.stdout)
    assert "shorter texts: 64 samples a client" in words(result.stdout)
    file = next(out.glob("table5-stand-ins-scale0.0004-*-rmsprop.json"))
    assert [(row["K"]["ours"], row["MimeXlite"]["published"]) for row in json.loads(file.read_text())["rows"]] == [
        ("10", "55.9 ± 0.3"),
        ("50", "55.9 ± 0.1"),
    ]


def test_what_cannot_be_asked_for(out):
    for args, message in (
        (["figure2", "--tasks", "mnist"], "figure2 has no task 'mnist'"),
        (["figure2", "--scale", "2"], "scale must be above 0"),
        (["table5", "--optimisers", "sgd"], "table5 has no optimiser 'sgd'"),
        (["table4", "rounds"], "'rounds' must be key=value"),
    ):
        result = CliRunner().invoke(app, ["paper", *args, "--out", str(out)])
        assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_the_real_ones_are_listed_without_any_data(out):
    output = call("figure2", "--dry-run", "--out", out).stdout
    assert "Figure 2: test accuracy against rounds, K = 10; 295 runs (295 would run); nothing was run" in output
