"""The same runs in one process and in teams of two and three: the same bits, and the same errors."""

import json
import subprocess
import sys

import pytest

from tests.engines.team_program import BAD, GOOD, outcome
from tests.engines.teams import ROOT, ended, environment, start

pytestmark = pytest.mark.slow
PROGRAM = ("-m", "tests.engines.team_program")


def read(folder, size):
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    """Outcomes by rank, of two processes under torchrun and of three others."""
    folder = tmp_path_factory.mktemp("teams")
    (folder / "3").mkdir()
    (folder / "2").mkdir()
    for code, _, errors in ended(start(3, *PROGRAM, folder / "3", cwd=ROOT)):
        assert code == 0, errors
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *PROGRAM, folder / "2"]
    done = subprocess.run(torchrun, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [*read(folder / "3", 3), *read(folder / "2", 2)]


@pytest.mark.parametrize("name", GOOD)
def test_every_process_has_the_bits_of_one(name, teams):
    alone = json.loads(json.dumps(outcome(GOOD[name])))
    assert len(alone[0]) == 64, alone
    for outcomes in teams:
        assert outcomes[name] == alone


@pytest.mark.parametrize("name", ["diverged", "no-device"])
def test_errors_that_one_process_would_raise_are_raised_by_all(name, teams):
    kind, text = outcome(BAD[name])
    assert kind in ("DivergenceError", "ConfigError")
    for outcomes in teams:
        assert outcomes[name] == [kind, text]


def test_a_failure_in_one_process_is_its_own_error_there_and_named_in_the_others(teams):
    for name, whose, error in (("brittle", {3: 1, 2: 0}, "seven"), ("callback", {3: 0, 2: 0}, "disk full")):
        kind = {"seven": "ValueError", "disk full": "OSError"}[error]
        for size, team in ((3, teams[:3]), (2, teams[3:])):
            for rank, outcomes in enumerate(team):
                other = ["RankError", f"rank {whose[size]} failed: {kind}: {error}"]
                assert outcomes[name] == ([kind, error] if rank == whose[size] else other)


def test_metrics_are_for_one_process(teams):
    for size, team in ((3, teams[:3]), (2, teams[3:])):
        for outcomes in team:
            assert outcomes["metrics"][0] == "ConfigError"
            assert f"metrics (cosine) are measured by one process, and here are {size}" in outcomes["metrics"][1]
            assert "start the run without torchrun" in outcomes["metrics"][1]


def test_processes_that_would_do_different_runs_are_told_so(teams):
    for outcomes in teams:
        assert outcomes["unlike"][0] == "ConfigError"
        assert "rank 1 has another seed than rank 0: 1, not 0" in outcomes["unlike"][1]
