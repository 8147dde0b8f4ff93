import subprocess
import sys

import pytest

import fedgbo
from fedgbo.engines.torchrun.join import join
from fedgbo.engines.join import started_as_team
from fedgbo.engines.team import ALONE
from tests.engines.teams import environment

PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def place(monkeypatch):
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    join.cache_clear()
    yield monkeypatch
    join.cache_clear()


def test_a_team_is_known_by_its_whole_environment(place):
    assert started_as_team()
    place.setenv("WORLD_SIZE", "1")
    assert not started_as_team()
    assert join() is ALONE
    place.setenv("WORLD_SIZE", "2")
    place.delenv("RANK")
    assert not started_as_team()


def test_a_wrong_timeout(place):
    place.setenv("FEDGBO_TIMEOUT", "soon")
    with pytest.raises(fedgbo.ConfigError, match=r"FEDGBO_TIMEOUT must be a number of seconds above 0, .* not 'soon'"):
        join()


def test_nobody_there(place):
    place.setenv("FEDGBO_TIMEOUT", "0.2")
    with pytest.raises(fedgbo.RankError, match=r"rank 1 of 2 cannot join the others at 127\.0\.0\.1:1"):
        join()


def test_a_plain_run_does_not_initialise_torch_distributed():
    program = (
        "import sys, torch, fedgbo; from tests.conftest import make_task; "
        "fedgbo.run(make_task(), fedgbo.FedAvg(fedgbo.SGD(0.1)), rounds=1); "
        "assert 'fedgbo.engines.distributed' not in sys.modules; assert not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
