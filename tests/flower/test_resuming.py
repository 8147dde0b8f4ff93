"""A server that is stopped, killed or cut off goes on to the same bits, and never from a bad checkpoint."""

import dataclasses

import httpx
import pytest

import fedgbo
from fedgbo.core.errors import ConfigError, DivergenceError, FederationError, RunFolderError
from fedgbo.flower import Strategy
from fedgbo.runs.folder import RunFolder
from tests.conftest import Killed, kill_at
from tests.flower.federations import GBO, QUICK, events, everyone, federate, nodes, simulate, some, told
from tests.flower.grids import LocalGrid


def test_a_state_that_is_no_longer_finite_stops_the_run_before_it_is_saved(tmp_path):
    wild = fedgbo.AdaptiveFedOpt(fedgbo.SGD(lr=0.1), fedgbo.SGD(lr=1e45))
    with pytest.raises(DivergenceError, match="params is no longer finite after round"):
        federate(everyone, wild, rounds=5, out=tmp_path / "run")
    assert "params is no longer finite after round" in events(tmp_path / "run", "stopped")[0]["reason"]
    checkpoint, _ = RunFolder(tmp_path / "run").latest()
    assert checkpoint.state.not_finite() is None


def test_a_killed_server_resumes_to_the_same_bits(tmp_path):
    with pytest.raises(Killed):
        federate(some, rounds=4, eval_every=4, out=tmp_path / "run", callbacks=[kill_at(2)])
    resumed = federate(some, rounds=4, eval_every=4, out=tmp_path / "run", resume=True)
    assert told(resumed) == told(simulate(some, rounds=4, eval_every=4))
    assert [event["round"] for event in events(tmp_path / "run", "done_round")] == [1, 2, 3, 4]


def test_a_folder_in_use_is_refused_and_nothing_is_written_into_it(tmp_path):
    refusals = []

    def second(progress):
        with pytest.raises(RunFolderError, match="in use by another process") as error:
            federate(everyone, out=tmp_path / "run", resume=True)
        refusals.append(error)

    federate(everyone, out=tmp_path / "run", callbacks=[second])
    assert refusals
    assert not events(tmp_path / "run", "stopped")


def test_a_checkpoint_that_is_damaged_or_of_another_run_is_refused(tmp_path):
    federate(everyone, out=tmp_path / "run")
    strategy = Strategy(everyone(), GBO, local_steps=2, seed=1, options=QUICK)
    with pytest.raises(RunFolderError, match="holds a checkpoint of another run: its seed"):
        strategy.start(LocalGrid(nodes(everyone)), rounds=3, out=tmp_path / "run", resume=True)
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="is damaged or not a checkpoint"):
        federate(everyone, rounds=3, out=tmp_path / "run", resume=True)


def test_a_superlink_that_is_gone_ends_the_run_in_our_words(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.flower.messenger.PAUSES", ())
    grid = LocalGrid(nodes(everyone))

    def gone(progress):
        if progress.ledger.round == 1:

            def refuse(ids):
                raise httpx.ConnectError("refused")

            grid.pull_messages = refuse

    with pytest.raises(FederationError, match="the connection to the SuperLink broke"):
        federate(everyone, grid=grid, rounds=3, out=tmp_path / "run", callbacks=[gone])
    assert told(federate(everyone, rounds=3, out=tmp_path / "run", resume=True)) == told(simulate(everyone, rounds=3))


def test_a_superlink_that_fails_for_a_moment_is_called_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.flower.messenger.PAUSES", (0.01, 0.01))
    grid, failures = LocalGrid(nodes(everyone)), []
    pull = grid.pull_messages

    def fail_twice(ids):
        if len(failures) < 2:
            failures.append(ids)
            response = httpx.Response(500, request=httpx.Request("POST", "https://x"))
            raise httpx.HTTPStatusError("500", request=response.request, response=response)
        return pull(ids)

    grid.pull_messages = fail_twice
    assert told(federate(everyone, grid=grid)) == told(simulate(everyone))
    assert len(failures) == 2


def test_options_that_decide_the_result_are_held_against_a_resume(tmp_path):
    federate(everyone, rounds=1, out=tmp_path / "run")
    changed = dataclasses.replace(QUICK, quorum=0.9)
    with pytest.raises(ConfigError, match=r"quorum is 0.9 now, .* resume it with: -c quorum=0.5"):
        federate(everyone, rounds=2, options=changed, out=tmp_path / "run", resume=True)
    weighted = dataclasses.replace(QUICK, weighted=True)
    with pytest.raises(RunFolderError, match="its aggregator is None, here it is"):
        federate(everyone, rounds=2, options=weighted, out=tmp_path / "run", resume=True)
    federate(everyone, rounds=2, options=dataclasses.replace(QUICK, deadline=0.5), out=tmp_path / "run", resume=True)
