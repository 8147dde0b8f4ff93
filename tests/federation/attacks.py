"""What a registered node could send, made by hand."""

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node


def reply_of(node, objects, sender=None):
    """A reply with many objects, of the node with this id, as bytes."""
    tree = ObjectTree(object_id="0" * 64)
    tree.children.extend(ObjectTree(object_id=f"{number:064x}") for number in range(objects))
    message = Message(metadata=Metadata(src_node_id=node, run_id=1, message_id="0" * 64))
    request = PushMessagesRequest(node=Node(node_id=sender or node), messages_list=[message])
    request.message_object_trees.append(tree)
    return request.SerializeToString()
