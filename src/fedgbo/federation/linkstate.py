"""The SuperLink's database: what launch.py changes in Flower's code for it."""

import logging
import threading
import time
from typing import Any

LOG = logging.getLogger("flwr")


def answer_503() -> None:
    """Answer 503 if the database is locked or full. Flower would answer 500 or, for a node's object, "not stored"."""
    from fastapi import HTTPException
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from sqlalchemy import Engine, event, exc

    store_any, calls = SqlLinkState.store_object, threading.local()

    @event.listens_for(Engine, "handle_error")
    def note(context: Any) -> None:
        if isinstance(context.sqlalchemy_exception, exc.OperationalError):
            calls.failed = True
            raise HTTPException(503)

    def store_object(self: Any, *about: Any) -> bool:
        calls.failed = False
        if not (stored := store_any(self, *about)) and calls.failed:
            raise HTTPException(503)
        return stored

    SqlLinkState.store_object = store_object  # type: ignore[assignment, method-assign]


def let_the_server_decide() -> None:
    """Let the server's messages decide which objects consist of which; the store believes whoever says so first.

    Ids are hashes, which can be guessed: a node could announce an object of the server's next message with wrong parts.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.state.schema.objectstore_models import ObjectChild, StoredObject
    from sqlalchemy import delete, insert, select, update

    store_any, announced = SqlLinkState.store_message_and_object_tree, dict[str, int]()  # by which node, lately

    def wrong(store: Any, tree: dict[str, set[str]]) -> list[str]:
        with store.session() as session:
            stored = session.scalars(select(StoredObject.object_id).where(StoredObject.object_id.in_(tree)))
            found = {whole: set[str]() for whole in stored}
            for link in session.scalars(select(ObjectChild).where(ObjectChild.parent_id.in_(found))):
                found[link.parent_id].add(link.child_id)
        return [whole for whole in tree if found.get(whole, tree[whole]) != tree[whole]]

    def correct(store: Any, whole: str, parts: set[str]) -> None:
        LOG.warning("node_id=%s announced an object of the server with wrong parts", announced.get(whole, "unknown"))
        links = ObjectChild.parent_id == whole
        with store._mutation_session() as session:
            claimed = set(session.scalars(select(ObjectChild.child_id).where(links)))
            session.execute(delete(ObjectChild).where(links))
            for part in parts:
                new = {"object_id": part, "content": b"", "is_available": 0, "ref_count": 0}
                session.execute(store.dialect_insert(StoredObject).values(new).on_conflict_do_nothing())
                session.execute(insert(ObjectChild).values(parent_id=whole, child_id=part))
            for ids, change in ((claimed, -1), (parts, 1)):
                counts = update(StoredObject).where(StoredObject.object_id.in_(ids))
                session.execute(counts.values(ref_count=StoredObject.ref_count + change))

    def store_message(self: Any, message: Any, object_tree: Any, session_id: str) -> Any:
        tree = {one.object_id: {part.object_id for part in one.children} for one in iterate_object_tree(object_tree)}
        if message.metadata.src_node_id != 1:  # of a node; Flower's server is 1, and the proxy lets no node say so
            announced.update(dict.fromkeys(tree.keys() - announced.keys(), message.metadata.src_node_id))
        else:
            for whole in reversed(wrong(self.object_store, tree)):  # wholes before their parts
                correct(self.object_store, whole, tree[whole])
        if len(announced) > 100_000:
            announced.clear()
        return store_any(self, message, object_tree, session_id)

    SqlLinkState.store_message_and_object_tree = store_message  # type: ignore[method-assign]


def delete_what_expired() -> None:
    """Delete messages and replies whose time is over, which nobody may be fetching any more, with their objects.

    Flower keeps them until the run ends: a node that confirms or delivers nothing could fill the disk.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.state.schema.corestate_models import ObjectPushSessionRoot
    from sqlalchemy import select

    store_any, ends = SqlLinkState.store_message_and_object_tree, dict[str, float]()

    def store_message(self: Any, message: Any, object_tree: Any, session_id: str) -> Any:
        for one in [one for one, end in list(ends.items()) if end < time.time()]:
            with self.session() as session:
                begun = select(ObjectPushSessionRoot.session_id).where(ObjectPushSessionRoot.root_object_id == one)
                for unfinished in session.scalars(begun).all():
                    self._cleanup_push_session(unfinished, cleanup_messages=True)
                self.object_store.delete(one)
                self.delete_messages({one})
            ends.pop(one, None)
        stored, missing = store_any(self, message, object_tree, session_id)
        if stored:
            ends[message.metadata.message_id] = message.metadata.created_at + message.metadata.ttl
        return stored, missing

    SqlLinkState.store_message_and_object_tree = store_message  # type: ignore[method-assign]
