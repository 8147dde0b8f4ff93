"""What a round takes on the wire, measured, beside the ledger's closed form; and where its time goes."""

import pytest
import torch
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import fedgbo
from fedgbo.flower import Options
from tests.conftest import make_task
from tests.flower.federations import events, federate, nodes, simulate
from tests.flower.grids import LocalGrid, through_the_wire

OVERHEAD = 2_500  # bytes of a message besides its vectors: the settings, the order, and Flower's own
ALGORITHMS = [
    fedgbo.FedAvg(fedgbo.SGD(lr=0.1)),  # x down, x up
    fedgbo.FedGBO(fedgbo.Adam(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3)),  # x, m, v down, x up
    fedgbo.MFL(fedgbo.SGDm(lr=0.1, beta=0.9)),  # x, m down and up
]


def sizeable():
    return make_task(clients=3, batch_size=4, model=lambda: torch.nn.Linear(3, 20_000))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_one_client_a_node_takes_what_the_ledger_says(algorithm, tmp_path):
    grid = LocalGrid(nodes(sizeable, 3))
    result = federate(sizeable, algorithm, grid=grid, options=Options(max_norm=0, poll=0.01), out=tmp_path / "run")
    rounds = events(tmp_path / "run", "done_round")
    assert len(rounds) == 2
    for done in rounds:
        assert done["ledger_down"] <= done["sent_bytes"] <= 1.02 * done["ledger_down"] + 3 * OVERHEAD
        assert done["ledger_up"] <= done["received_bytes"] <= 1.02 * done["ledger_up"] + 3 * OVERHEAD
    whole = simulate(sizeable, algorithm).history[-1]
    assert sum(done["ledger_down"] for done in rounds) == whole.download_bytes == result.history[-1].download_bytes
    assert sum(done["ledger_up"] for done in rounds) == whole.upload_bytes


def test_a_node_with_several_clients_gets_the_model_once(tmp_path):
    federate(sizeable, grid=LocalGrid(nodes(sizeable, 1)), rounds=1, out=tmp_path / "run")
    (done,) = events(tmp_path / "run", "done_round")
    assert done["sent_bytes"] <= 1.02 * done["ledger_down"] / 3 + OVERHEAD
    assert done["received_bytes"] <= 1.02 * done["ledger_up"] + OVERHEAD


def test_the_measure_is_that_of_the_messages_that_went_out(tmp_path):
    """Serialised anew here, piece by piece."""
    grid = LocalGrid(nodes(sizeable, 3))
    federate(sizeable, grid=grid, rounds=1, out=tmp_path / "run")
    (done,) = events(tmp_path / "run", "done_round")
    sent = [message for message in grid.sent if message.metadata.message_type.startswith("train")]
    pieces = [get_all_nested_objects(through_the_wire(message)).values() for message in sent]
    assert done["sent_bytes"] == sum(len(piece.deflate()) for message in pieces for piece in message)


def test_a_round_says_where_its_time_went(tmp_path):
    federate(sizeable, rounds=1, out=tmp_path / "run")
    (done,) = events(tmp_path / "run", "done_round")
    parts = {"sampling", "sending", "waiting", "checking", "averaging", "server", "evaluation", "saving"}
    assert set(done["seconds"]) == parts
    assert all(seconds >= 0 for seconds in done["seconds"].values())
    assert done["seconds"]["sending"] > 0  # where this grid trains
