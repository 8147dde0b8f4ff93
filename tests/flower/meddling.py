"""Replies that are not what they should be: grids on which one node lies, fails or is silent."""

import json

import numpy as np
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict

from fedgbo.flower.wire import KEY
from tests.flower.federations import everyone, nodes
from tests.flower.grids import LocalGrid


def meddled(change, *, node=1, builder=everyone, since=1):
    """A grid on which one node's replies to training messages, from a round on, are not what they should be."""

    def meddle(reply, sender):
        trained = reply.metadata.message_type.startswith("train")
        if sender == node and trained and int(reply.metadata.group_id) >= since:
            return change(reply)
        return reply

    return LocalGrid(nodes(builder, 6), meddle)


def with_array(name, values):
    def change(reply):
        reply.content["up.0"][name] = values if isinstance(values, Array) else Array(values)
        return reply

    return change


def naming(name, times):
    """Let the reply have the client's update under other names."""

    def change(reply):
        record = reply.content["up.0"]
        update = record.pop("params")
        record.update({f"{name}{number}": update for number in range(times)})
        return reply

    return change


def without(name):
    def change(reply):
        del reply.content["up.0"][name]
        return reply

    return change


def scaled(factor, client=0):
    def change(reply):
        update = reply.content[f"up.{client}"]
        update["params"] = Array(update["params"].numpy() * np.float32(factor))
        return reply

    return change


def saying(**more):
    """Let the client say other things of its update."""

    def change(reply):
        answer = json.loads(reply.content[KEY]["answer"])
        answer["clients"]["0"] |= more
        reply.content[KEY] = ConfigRecord({"answer": json.dumps(answer)})
        return reply

    return change


def answering(text):
    def change(reply):
        reply.content[KEY] = ConfigRecord({"answer": text})
        return reply

    return change


def empty(reply):
    return Message(RecordDict(), reply_to=asked(reply))


def asked(reply):
    """The message that a reply is to, as far as another reply needs it."""
    message = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    message.metadata.__dict__["_group_id"] = reply.metadata.group_id
    return message


def raises(reply):
    return Message(Error(2, "RuntimeError: no such patient"), reply_to=asked(reply))
