"""A node: Flower's SuperNode, why a server refuses it, and what its log says."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedgbo.core import ConfigError, FederationError
from fedgbo.federation.credentials import NodeFolder
from fedgbo.federation.network import LOOPBACK, Address, check_server, free_ports
from fedgbo.federation.processes import Process, Tail, flower_command, flower_environment, stop, without_colours
from fedgbo.federation.warm import start_warm, warm_environment

JOIN_SECONDS = 180.0  # about 8 on an idle machine, more when several start at once
ConfigValue = str | int | float | bool
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JOINED = re.compile(r"SuperNode ID: (\d+)")
_REFUSALS = {  # patterns in a node's log, and the messages for them
    r"Failed to activate SuperNode|No SuperNode found": "refused: the server at {server} does not know this node's "
    "key; send {node.public_key} to its administrators, who register it with: fedgbo federation register DIR "
    "{node.public_key.name}",
    r"must be registered|registration (is )?disabled": "refused: the server at {server} accepts only nodes whose keys "
    "are registered, and this node showed none; make one with: fedgbo federation key {node.path}",
    r"Exit Code: 606|version compatibility": "refused: this node runs another version of Flower than the server at "
    "{server}: {version}",
    r"certificate verify failed|handshake error": "this node does not trust the certificate of the server at {server}; "
    "see {node.log}",
    r"Exit Code: 302": "{node.private_key} is not a key that Flower can read; make a new one with: fedgbo federation "
    "key NAME",
}
_NEWS = (  # patterns in a node's log, and what to tell the user
    (re.compile(r"\[RUN \d+, ROUND (\d+)\]"), r"round \1"),
    (re.compile(r"(this node cannot take part: .*)"), r"\1"),
    (re.compile(r"(client \d+ in round \d+: .*)"), r"\1"),
    (re.compile(r"Connection attempt failed"), "the server does not answer; trying again"),
    (re.compile(r"Connection successful"), "the server answers again"),
)


def start_supernode(
    node: NodeFolder, superlink: Address, ca: Path | None, config: Mapping[str, ConfigValue], port: int | None = None
) -> Process:
    """Start a SuperNode that connects to `superlink`; `config` says which clients it hosts, among other things.

    Without `ca` it uses plain HTTP and no key. `port`, on loopback, is for the processes that it starts itself.
    """
    check_server(superlink, ca)
    environment = flower_environment(node.path / "flwr")
    warm = os.environ.get("FEDGBO_WARM", "1") != "0"
    if warm:
        environment = warm_environment(node.path / "warm", environment)
    command = [flower_command("flower-supernode", environment), "--superlink", str(superlink)]
    if ca is None:
        command += ["--insecure"]
    else:
        node.check()
        command += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(node.private_key)]
    command += ["--host", LOOPBACK, "--port", str(port or free_ports(1)[0])]
    if config:
        command += ["--node-config", node_config(config)]
    process = Process.start(f"node {node.name}", command, environment, node.log)
    if warm:
        process.helpers = [start_warm(node.path / "warm", environment, node.log)]
    return process


def wait_joined(process: Process, node: NodeFolder, superlink: Address) -> int:
    """Wait until the node has joined and return its Flower id; raise FederationError if it was refused."""
    try:
        process.wait_for(lambda: bool(_JOINED.search(process.output())), JOIN_SECONDS, f"being accepted by {superlink}")
    except FederationError as error:
        log = process.output()
        stop([process])
        version = next((line.strip() for line in log.splitlines() if "version" in line.lower()), "")
        for pattern, message in _REFUSALS.items():
            if re.search(pattern, log, re.IGNORECASE):
                raise FederationError(message.format(node=node, server=superlink, version=version)) from error
        raise
    return int(_JOINED.findall(process.output())[0])


def node_config(config: Mapping[str, ConfigValue]) -> str:
    """Return a node's configuration in the form of Flower's command line.

    >>> node_config({"clients": "0,3", "partition-id": 0, "fast": True})
    'clients="0,3" partition-id=0 fast=true'
    """
    for key, value in config.items():
        if not _KEY.fullmatch(key):
            raise ConfigError(f"'{key}' cannot be a key of a node's configuration; use letters, digits, '-' and '_'")
        if isinstance(value, str) and ('"' in value or "\n" in value):
            raise ConfigError(f"{key}: the value must not contain quotation marks or line breaks")
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items())


class NodeWatch:
    """Reads a node's log as it grows."""

    def __init__(self, process: Process) -> None:
        self._tail, self._last = Tail(process.log, process.begin), ""

    def new(self) -> Iterator[str]:
        """Yield the news since the last call: rounds, refusals and connections, nothing twice in a row."""
        for line in self._tail.lines():
            for pattern, message in _NEWS:
                found = pattern.search(without_colours(line))
                if found is not None and (news := found.expand(message)) != self._last:
                    self._last = news
                    yield news
