"""The same runs in one process and in two and three: the same bits, and the same errors."""

import json
import subprocess
import sys

import pytest

import fedgbo
from fedgbo.core.random import stream
from fedgbo.engines.torchrun.join import join, under_torchrun
from tests.conftest import make_task
from tests.engines.teams import ROOT, ended, environment, start
from tests.engines.torchrun_program import BAD, GOOD, outcome

pytestmark = pytest.mark.xdist_group("torchrun")  # `ranks` takes long: once is enough
PROGRAM = ("-m", "tests.engines.torchrun_program")


def read(folder, size):
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Outcomes by rank, of two processes under torchrun and of three others."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "3").mkdir()
    (folder / "2").mkdir()
    for code, _, errors in ended(start(3, *PROGRAM, folder / "3", cwd=ROOT)):
        assert code == 0, errors
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *PROGRAM, folder / "2"]
    done = subprocess.run(torchrun, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [*read(folder / "3", 3), *read(folder / "2", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_every_process_has_the_bits_of_one(name, ranks):
    alone = json.loads(json.dumps(outcome(GOOD[name])))
    assert len(alone[0]) == 64, alone
    for outcomes in ranks:
        assert outcomes[name] == alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diverged", "no-device"])
def test_errors_that_one_process_would_raise_are_raised_by_all(name, ranks):
    kind, text = outcome(BAD[name])
    assert kind in ("DivergenceError", "ConfigError")
    for outcomes in ranks:
        assert outcomes[name] == [kind, text]


@pytest.mark.slow
def test_a_failure_in_one_process_is_its_own_error_there_and_named_in_the_others(ranks):
    for name, whose, error in (("brittle", {3: 1, 2: 0}, "seven"), ("callback", {3: 0, 2: 0}, "disk full")):
        kind = {"seven": "ZeroDivisionError", "disk full": "OSError"}[error]
        for size, group in ((3, ranks[:3]), (2, ranks[3:])):
            for rank, outcomes in enumerate(group):
                other = ["RankError", f"rank {whose[size]} failed: {kind}: {error}"]
                assert outcomes[name] == ([kind, error] if rank == whose[size] else other)


@pytest.mark.slow
def test_metrics_are_for_one_process(ranks):
    for size, group in ((3, ranks[:3]), (2, ranks[3:])):
        for outcomes in group:
            assert outcomes["metrics"][0] == "ConfigError"
            assert f"metrics (cosine) are measured by a single process, but there are {size}" in outcomes["metrics"][1]
            assert "start the run without torchrun" in outcomes["metrics"][1]


@pytest.mark.slow
def test_processes_that_would_do_different_runs_are_told_so(ranks):
    for outcomes in ranks:
        assert outcomes["unlike"][0] == "ConfigError"
        assert "rank 1 has a different seed from rank 0: 1, not 0" in outcomes["unlike"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ragged", "ragged-median", "ragged-last", "ragged-last-median", "short"])
def test_uploads_that_cannot_be_combined_are_an_error_in_every_process(name, ranks):
    assert outcome(BAD[name])[0] == "ConfigError"
    for outcomes in ranks:
        assert outcomes[name][0] == "ConfigError"
        assert "client_update" in outcomes[name][1]


def test_rounds_without_clients_change_nothing():
    """Poisson sampling draws nobody in some of the rounds that are also run by several processes."""
    sizes = [int((stream(0, "cohort", t).random(4) < 0.2).sum()) for t in range(12)]
    assert {0, 1} <= set(sizes)
    states = []
    run = fedgbo.run(
        make_task(batch_size=4),
        fedgbo.SCAFFOLD(fedgbo.SGD(0.1)),
        rounds=12,
        sampler=fedgbo.Poisson(0.2),
        callbacks=[lambda progress: states.append(progress.state.params)],
    )
    moved = [not states[t].equal(states[t + 1]) for t in range(12)]
    assert moved == [size > 0 for size in sizes]
    vectors = 2 * 26 * 4  # x and c, 26 parameters, 4 bytes
    assert run.history[-1].upload_bytes == run.history[-1].download_bytes == sum(sizes) * vectors
    assert [record.train_loss is None for record in run.history] == [True, *(size == 0 for size in sizes)]


PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def place(monkeypatch):
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    join.cache_clear()
    yield monkeypatch
    join.cache_clear()


def test_several_processes_are_known_by_their_whole_environment(place):
    assert under_torchrun()
    place.setenv("WORLD_SIZE", "1")
    assert not under_torchrun()
    place.setenv("WORLD_SIZE", "2")
    place.delenv("RANK")
    assert not under_torchrun()


def test_a_wrong_timeout(place):
    place.setenv("FEDGBO_TIMEOUT", "soon")
    with pytest.raises(fedgbo.ConfigError, match=r"FEDGBO_TIMEOUT must be a number of seconds above 0, .* not 'soon'"):
        join()


def test_no_other_process_is_there(place):
    place.setenv("FEDGBO_TIMEOUT", "0.2")
    with pytest.raises(fedgbo.RankError, match=r"rank 1 of 2 cannot join the others at 127\.0\.0\.1:1"):
        join()
