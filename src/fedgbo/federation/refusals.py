"""Why a server would not let a node in: read from the node's log, said to the person who sits there."""

import re

from fedgbo.federation.addresses import Address
from fedgbo.federation.node_keys import NodeFolder

_REASONS = (
    (re.compile(r"Failed to activate SuperNode|No SuperNode found", re.I), "unregistered"),
    (re.compile(r"must be registered|registration (is )?disabled", re.I), "keyless"),
    (re.compile(r"Exit Code: 606|version compatibility", re.I), "version"),
    (re.compile(r"certificate verify failed|handshake error", re.I), "certificate"),
    (re.compile(r"Exit Code: 302", re.I), "key"),
)


def refusal(log: str, node: NodeFolder, server: Address) -> str | None:
    """Return a sentence about why the server refused the node; None if the log does not tell."""
    for pattern, reason in _REASONS:
        if pattern.search(log):
            return _sentence(reason, log, node, server)
    return None


def _sentence(reason: str, log: str, node: NodeFolder, server: Address) -> str:
    if reason == "unregistered":
        return (
            f"refused: the server at {server} does not know this node's key; send {node.public_key} to its people, who "
            f"let it in with: fedgbo federation register DIR {node.public_key.name}"
        )
    if reason == "keyless":
        return (
            f"refused: the server at {server} lets in only nodes whose keys are registered, and this one showed none; "
            f"make one with: fedgbo federation key {node.path}"
        )
    if reason == "version":
        told = next((line.strip() for line in log.splitlines() if "version" in line.lower()), "")
        return f"refused: this node runs another version of Flower than the server at {server}: {told}"
    if reason == "certificate":
        return f"the certificate of the server at {server} is not one that this node trusts; see {node.log}"
    return f"{node.private_key} is no key that Flower can read; make a new one with: fedgbo federation key NAME"
