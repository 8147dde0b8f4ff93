"""What clients keep from round to round stays on their nodes, and always fits what the server counted."""

from dataclasses import dataclass, replace

import pytest
import torch

import fedgbo
from fedgbo.flower import client_app
from tests.conftest import Killed, kill_at
from tests.flower.federations import QUICK, events, everyone, federate, nodes, simulate, some, told
from tests.flower.grids import LocalGrid
from tests.flower.meddling import meddled, scaled

SCAFFOLD = fedgbo.SCAFFOLD(fedgbo.SGD(lr=0.3))


@pytest.mark.parametrize("t", [1, 3, 4])
def test_a_killed_server_resumes_to_the_same_bits(tmp_path, t):
    with pytest.raises(Killed):
        federate(some, SCAFFOLD, rounds=6, out=tmp_path / "run", callbacks=[kill_at(t)])
    resumed = federate(some, SCAFFOLD, rounds=6, out=tmp_path / "run", resume=True)
    assert told(resumed)[0] == told(simulate(some, SCAFFOLD, rounds=6))[0]


def test_states_stay_on_the_nodes_and_few_versions_are_kept(tmp_path):
    federate(some, SCAFFOLD, rounds=12, out=tmp_path / "run")
    assert not list((tmp_path / "run").rglob("clients/*"))
    kept = list((tmp_path / "state" / "fedgbo" / "clients").glob("*/*.safetensors"))
    assert 6 <= len(kept) <= 6 * 3
    assert (tmp_path / "state" / "fedgbo" / "clients").glob("*").__next__().stat().st_mode & 0o077 == 0


def test_a_node_may_name_the_folder(tmp_path):
    homes = [
        (app, {**config, "state-folder": str(tmp_path / f"node-{i}")}) for i, (app, config) in enumerate(nodes(some))
    ]
    result = federate(some, SCAFFOLD, grid=LocalGrid(homes), rounds=4)
    assert told(result)[0] == told(simulate(some, SCAFFOLD, rounds=4))[0]
    assert all(list((tmp_path / f"node-{i}").rglob("*.safetensors")) for i in range(3))


def test_an_update_that_was_rejected_leaves_no_trace_in_the_clients_state(tmp_path):
    """Client 0 is rejected in every round, so that its c_0 stays zero: as if it took part in no round."""
    result = federate(everyone, SCAFFOLD, grid=meddled(scaled(1e6)), rounds=3, out=tmp_path / "run")
    assert {event["client"] for event in events(tmp_path / "run", "rejected")} == {0}
    others = replace(everyone(), clients_per_round=None)
    assert others.data.clients == 6
    again = federate(everyone, SCAFFOLD, grid=meddled(scaled(1e6)), rounds=3, out=tmp_path / "other")
    assert told(again)[0] == told(result)[0]


def test_a_node_that_lost_its_folder_says_so(tmp_path):
    def lose(progress):
        if progress.ledger.round == 2:
            for path in (tmp_path / "state").rglob("0-*.safetensors"):
                path.unlink()

    federate(everyone, SCAFFOLD, rounds=3, out=tmp_path / "run", callbacks=[lose])
    (dropped,) = events(tmp_path / "run", "dropped")
    assert dropped["client"] == 0
    assert "the state of client 0 after round 2 is missing" in dropped["reason"]


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "samples"},
        {"aggregator": fedgbo.Median()},
        {"transforms": [fedgbo.ClipNorm(0.05)]},
        {"sampler": fedgbo.Poisson(0.4)},
    ],
    ids=str,
)
def test_every_part_of_the_pipeline_gives_the_bits_of_a_simulation(options):
    strategy = fedgbo.flower.Strategy(some(), SCAFFOLD, local_steps=2, options=QUICK, **options)
    ours = strategy.start(LocalGrid(nodes(some)), rounds=4)
    assert torch.equal(ours.params, fedgbo.run(some(), SCAFFOLD, rounds=4, local_steps=2, **options).params)


@dataclass(frozen=True)
class Own(fedgbo.FedAvg):
    """An algorithm without a cost formula: the server learns from the updates what clients send."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params, {"extra": 2 * up.params})


def test_an_algorithm_of_the_users_own(tmp_path):
    homes = [(client_app(everyone, own=[Own]), config) for _, config in nodes(everyone)]
    algorithm = Own(fedgbo.SGD(0.1))
    ours = federate(everyone, algorithm, grid=LocalGrid(homes), out=tmp_path / "run")
    assert told(ours) == told(simulate(everyone, algorithm))
