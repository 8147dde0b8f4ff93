"""Nodes that come, come late, come twice, or do not fit."""

import dataclasses
import itertools
import json
import threading
import time

import pytest
from flwr.app import ConfigRecord, Error, Message

import fedgbo
from fedgbo.core.errors import FederationError, RunFolderError
from fedgbo.flower import client_app
from fedgbo.flower.messenger import MOST_PULLS
from fedgbo.flower.registry import Registry
from fedgbo.flower.wire import KEY
from tests.flower.federations import QUICK, SOME_NODES, events, everyone, federate, nodes, simulate, told
from tests.flower.grids import LocalGrid
from tests.flower.meddling import asked as wanted


def test_nobody_connects(tmp_path):
    with pytest.raises(
        FederationError,
        match=r"after 0\.2 s 0 nodes take part; clients 0, 1, 2, 3, 4, 5 of 6 without a node; start the nodes",
    ):
        federate(everyone, grid=LocalGrid([]), out=tmp_path / "run")
    assert events(tmp_path / "run", "waiting")[0]["nodes"] == 0
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "interrupted"


def test_fewer_nodes_than_asked_for():
    options = dataclasses.replace(QUICK, min_nodes=4)
    with pytest.raises(FederationError, match=r"2 nodes take part; .* To begin without them: -c min-nodes=2"):
        federate(everyone, grid=LocalGrid(nodes(everyone, 6)[:2]), options=options)


def test_a_node_that_comes_later_takes_part(tmp_path):
    grid = LocalGrid(nodes(everyone, 6)[:5])
    app = nodes(everyone, 6)[5]

    def come(progress):
        if progress.ledger.round == 1:
            grid.nodes[6] = app
            time.sleep(1.05)  # nodes are looked for once a second

    federate(everyone, grid=grid, rounds=4, options=SOME_NODES, out=tmp_path / "run", callbacks=[come])
    took_part = [event["took_part"] for event in events(tmp_path / "run", "done_round")]
    assert took_part[0] == [0, 1, 2, 3, 4]
    assert took_part[-1] == [0, 1, 2, 3, 4, 5]
    assert events(tmp_path / "run", "dropped")[0]["reason"] == "no node hosts it now"


def test_a_client_that_two_nodes_host_is_the_first_ones(tmp_path):
    homes = [*nodes(everyone, 3), (client_app(everyone), {"clients": "0"})]
    result = federate(everyone, grid=LocalGrid(homes), out=tmp_path / "run")
    assert told(result) == told(simulate(everyone))
    (twice,) = events(tmp_path / "run", "duplicate")
    assert (twice["client"], twice["node"], twice["kept"]) == (0, "node 4", "node 1")
    assert [event["clients"] for event in events(tmp_path / "run", "joined")] == [[0, 3], [1, 4], [2, 5], []]


def test_the_second_host_of_a_client_takes_over_when_the_first_leaves(tmp_path):
    homes = [(client_app(everyone), {"clients": "0,1,2"}), *[(client_app(everyone), {"clients": "0,1,2,3,4,5"})] * 2]
    grid = LocalGrid(homes)

    def leave(progress):
        if progress.ledger.round == 1:
            del grid.nodes[1]
            time.sleep(1.05)  # nodes are looked for once a second

    federate(everyone, grid=grid, rounds=2, out=tmp_path / "run", callbacks=[leave])
    work = [message for message in grid.sent if message.metadata.message_type.startswith("train")]
    assert [message.metadata.dst_node_id for message in work] == [1, 2, 2]
    took_part = [event["took_part"] for event in events(tmp_path / "run", "done_round")]
    assert took_part == [[0, 1, 2, 3, 4, 5]] * 2


def introduced(**more):
    """A grid whose first node says other things of itself."""

    def meddle(reply, node):
        if node == 1 and reply.metadata.message_type.startswith("query"):
            answer = json.loads(reply.content[KEY]["answer"]) | more
            reply.content[KEY] = ConfigRecord({"answer": json.dumps(answer)})
        return reply

    return LocalGrid(nodes(everyone, 6), meddle)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"version": "0.0.1"}, "it has fedgbo 0.0.1, the server"),
        ({"model": "other"}, "its model has other parameters"),
        ({"clients": [6]}, "it says it hosts client 6, but there are 6 clients"),
        ({"clients": ["0"]}, "it says it hosts client 0"),
        ({"clients": None}, "does not say which clients"),
        ({"samples": [0]}, "client 0 has 0 samples"),
        ({"samples": [-3]}, "client 0 has -3 samples"),
        ({"samples": [float("nan")]}, "client 0 has nan samples"),
        ({"samples": [10**15]}, "samples"),
        ({"error": "no data here"}, "no data here"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_at_join(more, reason, tmp_path):
    federate(everyone, grid=introduced(**more), rounds=1, options=SOME_NODES, out=tmp_path / "run")
    (refused,) = events(tmp_path / "run", "refused")
    assert refused["node"] == "node 1"
    assert reason in refused["reason"]
    assert events(tmp_path / "run", "done_round")[0]["took_part"] == [1, 2, 3, 4, 5]


def test_a_node_with_another_version_says_so_at_the_node(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr("fedgbo.flower.strategy.__version__", "9.9")
    with pytest.raises(FederationError, match="0 nodes take part; node 1 was refused: it has fedgbo"):
        federate(everyone, out=tmp_path / "run")
    assert "this node cannot take part" in caplog.text
    assert "the server has fedgbo 9.9" in caplog.text
    assert len(events(tmp_path / "run", "refused")) == 3


def test_a_node_without_the_device_it_names(tmp_path):
    homes = [*nodes(everyone)[:2], (client_app(everyone), {"clients": "2,5", "device": "cuda:77"})]
    federate(everyone, grid=LocalGrid(homes), rounds=1, options=SOME_NODES, out=tmp_path / "run")
    assert "there is no device cuda:77 here" in events(tmp_path / "run", "refused")[0]["reason"]


class Own(fedgbo.FedAvg):
    """An algorithm of the user's."""


def test_a_node_loads_no_file_that_the_server_names(tmp_path):
    algorithm = Own(fedgbo.SGD(lr=0.1))
    with pytest.raises(FederationError):
        federate(everyone, algorithm, out=tmp_path / "run")
    assert "the algorithm Own is not known here" in events(tmp_path / "run", "refused")[0]["reason"]
    homes = [(client_app(everyone, own=[Own]), {"partition-id": i, "num-partitions": 3}) for i in range(3)]
    assert told(federate(everyone, algorithm, grid=LocalGrid(homes))) == told(simulate(everyone, algorithm))


def registered(tmp_path, *clients):
    """Options with a file of registered nodes, hospital-1 with Flower's id 1 and so on, for these clients."""
    for number, own in enumerate(clients, start=1):
        Registry(tmp_path).add(f"hospital-{number}", number, b"key", own)
    return dataclasses.replace(QUICK, nodes=str(tmp_path))


def test_keys_are_bound_to_clients(tmp_path):
    """The second node offers the first one's clients too, and answers faster."""
    options = registered(tmp_path, "0-2", "3-5")
    homes = [(client_app(everyone), {"clients": "0-2"}), (client_app(everyone), {"clients": "0-5"})]
    with pytest.raises(FederationError, match="hospital-2 was refused: it offers clients 0, 1, 2, but its key is"):
        federate(everyone, grid=LocalGrid(homes), options=options)
    honest = [(client_app(everyone), {"clients": own}) for own in ("0-2", "3-5")]
    assert told(federate(everyone, grid=LocalGrid(honest), options=options)) == told(simulate(everyone))


def test_a_registered_node_that_is_missing_is_an_error_unless_asked_for(tmp_path):
    options = registered(tmp_path, "0-2", "3-5", "7")
    homes = [(client_app(everyone), {"clients": own}) for own in ("0-2", "3-5")]
    with pytest.raises(FederationError, match="2 of 3 registered nodes take part; hospital-3 is missing; start"):
        federate(everyone, grid=LocalGrid(homes), options=options, out=tmp_path / "first")
    federate(everyone, grid=LocalGrid(homes), options=dataclasses.replace(options, min_nodes=2), out=tmp_path / "run")
    first, last = events(tmp_path / "run", "nodes")
    assert first["joined"] == last["joined"] == {"hospital-1": [0, 1, 2], "hospital-2": [3, 4, 5]}
    assert first["missing"] == last["missing"] == ["hospital-3"]
    assert events(tmp_path / "run")[-1]["kind"] == "finished"


def test_a_node_whose_key_is_not_registered(tmp_path):
    options = dataclasses.replace(registered(tmp_path, "0-5"), min_nodes=1)
    homes = [(client_app(everyone), {"clients": "0-5"}), (client_app(everyone), {"clients": "0"})]
    federate(everyone, grid=LocalGrid(homes), options=options, out=tmp_path / "run")
    assert "its key is not registered" in events(tmp_path / "run", "refused")[0]["reason"]
    assert Registry(tmp_path).clients() == 6


def test_a_damaged_list_of_nodes(tmp_path):
    (tmp_path / "nodes.json").write_text("[1]")
    with pytest.raises(RunFolderError, match=r"nodes\.json is damaged: .*; restore it, or remove it and register"):
        federate(everyone, options=dataclasses.replace(QUICK, nodes=str(tmp_path)))


def test_a_node_that_comes_and_goes_and_delivers_nothing_is_refused(tmp_path, monkeypatch):
    """Each reply that it announces would hold threads of the server's app for as long as Flower waits for it."""
    for name, seconds in (("roster.LOOK_SECONDS", 0.02), ("messenger.PULL_SECONDS", 0.01)):
        monkeypatch.setattr(f"fedgbo.flower.{name}", seconds)
    grid, delivered, looks = LocalGrid(nodes(everyone, 6)), threading.Event(), itertools.count()
    pull = grid.pull_messages

    def stalled(ids):
        if any(reply.metadata.src_node_id == 6 for reply in grid.replies.get(ids[0], [])):
            delivered.wait(60)
        return pull(ids)

    grid.pull_messages = stalled
    grid.get_node_ids = lambda: [1, 2, 3, 4, 5] + [6] * (next(looks) % 2)
    options = dataclasses.replace(QUICK, wait=3.0)
    with pytest.raises(FederationError, match="node 6 was refused: it announced several replies and did not deliver"):
        federate(everyone, grid=grid, options=options, out=tmp_path / "run")
    delivered.set()
    assert len([message for message in grid.sent if message.metadata.dst_node_id == 6]) == MOST_PULLS
    assert [event["node"] for event in events(tmp_path / "run", "refused")] == ["node 6"]


def test_a_node_that_was_refused_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgbo.flower.roster.AGAIN_SECONDS", 0.1)
    monkeypatch.setattr("fedgbo.flower.roster.LOOK_SECONDS", 0.05)
    asked = []

    def meddle(reply, node):
        if node == 1 and reply.metadata.message_type.startswith("query"):
            asked.append(node)
            if len(asked) < 3:
                return Message(Error(2, "app 0123 waits for the node's operators to allow it"), reply_to=wanted(reply))
        return reply

    options = dataclasses.replace(QUICK, wait=20)
    federate(everyone, grid=LocalGrid(nodes(everyone, 6), meddle), options=options, out=tmp_path / "run")
    (refused,) = events(tmp_path / "run", "refused")  # once, not for each time that it was asked
    assert refused["reason"] == "app 0123 waits for the node's operators to allow it"
