"""What we change in the SuperLink's database, in this process and with a real database."""

import time

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

from fedgbo.federation import linkstate


class Database:
    """A SuperLink's database with one run and one connected node."""

    def __init__(self, file):
        self.store = SqlObjectStore(str(file))
        self.store.initialize()
        self.state = SqlLinkState(str(file), NoOpFederationManager(), self.store)
        self.state.initialize()
        self.node = self.state.create_node("", "", b"key", 30.0)
        self.state.activate_node(self.node, 30.0)
        self.run = self.state.create_run("a/b", "1", "", {}, NOOP_FEDERATION_ID, None, "", "flwr-serverapp")

    def announce(self, source, to, seconds, answers="", leave=0):
        """Store a message and all of its objects but `leave`; return its id."""
        about = Metadata(self.run, "", source, to, answers, "", time.time(), seconds, "train.fedgbo")
        message = make_message(about, RecordDict({"fedgbo": ConfigRecord({"answer": answers, "at": time.time()})}))
        message.metadata.__dict__["_message_id"] = message.object_id
        objects, session = get_all_nested_objects(message), self.state.start_session(self.run)
        _, wanted = self.state.store_message_and_object_tree(message, get_object_tree(message), session)
        for one in wanted[: len(wanted) - leave]:
            assert self.state.store_object(self.run, session, one, objects[one].deflate())
        return message.object_id


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setattr(SqlLinkState, "store_message_and_object_tree", SqlLinkState.store_message_and_object_tree)
    linkstate.delete_what_expired()
    return Database(tmp_path / "superlink.db")


def test_messages_and_replies_are_deleted_when_their_time_is_over(database):
    """Flower would keep what a node does not confirm, and a reply that it does not deliver, until the run ends."""
    unconfirmed = database.announce(1, database.node, 1.0)
    complete = database.announce(database.node, 1, 0.5, answers=unconfirmed)
    order = database.announce(1, database.node, 1.0)
    incomplete = database.announce(database.node, 1, 0.5, answers=order, leave=1)
    kept = database.announce(1, database.node, 60.0)
    assert all(one in database.store for one in (unconfirmed, complete, order, incomplete, kept))
    assert len(database.store) == 15
    time.sleep(1.1)
    last = database.announce(1, database.node, 60.0)
    assert all(one in database.store for one in (kept, last))
    assert len(database.store) == 6
    assert (database.state.num_message_ins(), database.state.num_message_res()) == (2, 0)
