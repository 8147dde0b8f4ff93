"""A grid in this process: nodes are client apps, and every message goes through Flower's own serialisation."""

import itertools

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def through_the_wire(message):
    """Cut a message into the pieces that Flower sends, and put it together again."""
    pieces = {key: piece.deflate() for key, piece in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, pieces)
    copy.metadata.__dict__["_message_id"] = message.metadata.message_id
    return copy


class LocalGrid(Grid):
    """`nodes` are pairs of a client app and its node's configuration; the first has id 1.

    `meddle(reply, node)` may change a reply, return other ones in its place (a list), or None for none at all.
    """

    def __init__(self, nodes, meddle=lambda reply, node: reply):
        self.nodes = dict(enumerate(nodes, start=1))
        self.meddle = meddle
        self.replies = {}
        self.sent = []
        self._numbers = itertools.count()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower does for a server app

    def set_run(self, run):
        raise NotImplementedError

    run = None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        message.metadata.__dict__["_message_id"] = f"message-{next(self._numbers)}"
        message = through_the_wire(message)
        self.sent.append(message)
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return None
        app, config = self.nodes[node]
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        try:
            reply = app(message, context)
        except Exception as error:
            reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        answers = self.meddle(reply, node)
        answers = answers if isinstance(answers, list) else [] if answers is None else [answers]
        self.replies[message.metadata.message_id] = [through_the_wire(answer) for answer in answers]
        return message.metadata.message_id

    def pull_messages(self, message_ids):
        return [reply for key in message_ids for reply in self.replies.pop(key, [])]
