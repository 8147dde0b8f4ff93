import json

import pytest
from typer.testing import CliRunner

from fedgbo.cli.main import app
from fedgbo.experiments.theory.bound import Problem, Training, corollary, theorem


def call(*args):
    return CliRunner().invoke(app, ["theory", *(str(arg) for arg in args)])


def test_the_bound_for_machines():
    done = call("--smoothness", 2, "--beta", 0.5, "--local-steps", 4, "--rounds", 100, "--lr", 0.01, "--json")
    got = json.loads(done.stdout)
    problem, training = Problem(smoothness=2), Training(0.5, 4, 100, 0.02)
    assert got["theorem"]["total"] == theorem(problem, training).total
    assert got["corollary"]["momentum"] == corollary(problem, training).momentum
    assert got["training"]["lr"] == pytest.approx(0.01)
    assert all(condition["holds"] for condition in got["conditions"])


def test_the_bound_for_people(tmp_path):
    done = call("--figure", tmp_path / "bound.png", "--rounds", 100)
    assert done.exit_code == 0
    text = done.stdout
    assert all(word in text for word in ("conditions", "start", "drift", "momentum", "Corollary 1", "dominates"))
    assert "O(1/√T)" in text
    assert (tmp_path / "bound.png").read_bytes().startswith(b"\x89PNG")
    assert "K = 50" in (tmp_path / "bound.svg").read_text()
    fixed = call("--lr", 0.001).stdout
    assert "the bound falls to" in fixed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rounds", 10], "needs more than 1 / (1 - beta) = 10 rounds, not 10"),
        (["--beta", 1], "beta must be at least 0 and below 1"),
        (["--lr", 1, "--c", 1], "give --lr or --c, not both"),
        (["--gradient", 1e200], "gradient is too large for the computation, 1e+200; give at most 1e+50"),
        (["--lipschitz", 1e200], "the bound is too large to be computed"),
        (["--lr", 1e200], "the bound is too large to be computed, with a step of 1e+200; give smaller constants"),
        (["--lr", 0], "lr must be a finite number above 0"),
        (["measure", "--figure", "no/such/folder/x.png"], "there is no folder no/such/folder"),
        (["--beta", 0.5, "measure", "--rounds", 0], "--beta before measure has no effect; write it after measure"),
        (["--gap", 0], "with a gap of 0 the best C is 0"),
        (["--figure", "no/such/folder/x.png"], "there is no folder no/such/folder"),
        (["measure", "--rounds", 0], "rounds must be a whole number of at least 1"),
        (["measure", "--condition", 0.1], "condition must be a finite number of at least 1"),
    ],
)
def test_what_goes_wrong(args, message):
    done = call(*args)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_where_the_theorem_says_nothing_the_conditions_are_shown_all_the_same():
    done = call("--rounds", 10)
    assert " no " in done.stdout
    got = json.loads(call("--rounds", 10, "--json").stdout)
    assert got["theorem"] is None
    assert [c["holds"] for c in got["conditions"] if "above" in c["name"]] == [False]


def test_measure(tmp_path):
    args = ("measure", "--beta", 0.5, "--rounds", 6, "--rounds", 12, "--local-steps", 2, "--seeds", 1, "--clients", 6)
    done = call(*args, "--figure", tmp_path / "measured")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("yes") == 2
    assert (tmp_path / "measured.svg").exists()
    got = json.loads(call(*args, "--json").stdout)
    assert [result["training"]["rounds"] for result in got["results"]] == [6, 12]
    assert all(result["measured"] <= result["theorem"]["total"] and result["holds"] for result in got["results"])


def test_a_bound_that_does_not_hold_is_said_and_ends_badly(monkeypatch):
    monkeypatch.setattr("fedgbo.cli.theory.known_problem", lambda _: Problem(gradient=0.01))
    done = call("measure", "--beta", 0, "--rounds", 5, "--seeds", 1, "--local-steps", 1)
    assert done.exit_code == 1
    assert "no: largest gradient, R" in done.stdout
