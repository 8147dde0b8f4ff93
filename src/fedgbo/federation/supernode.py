"""Flower's SuperNode: a client's machine in the federation."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fedgbo.core.errors import ConfigError, FederationError
from fedgbo.federation.addresses import LOOPBACK, Address, free_ports
from fedgbo.federation.environment import flower_command, flower_environment
from fedgbo.federation.handshake import check_server
from fedgbo.federation.node_keys import NodeFolder
from fedgbo.federation.process import Process, stop
from fedgbo.federation.refusals import refusal
from fedgbo.federation.warm import start_warm, wanted, warm_environment

JOIN_SECONDS = 180.0  # about 8 on an idle machine, more when several start at once
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JOINED = re.compile(r"SuperNode ID: (\d+)")
Value = str | int | float | bool


def start_supernode(
    node: NodeFolder, superlink: Address, ca: Path | None, config: Mapping[str, Value], port: int | None = None
) -> Process:
    """Start a SuperNode that connects to `superlink`; `config` says which clients it hosts, and what else it likes.

    Without `ca` it speaks plain HTTP and shows no key. `port` is for the processes that it starts itself, on loopback.
    """
    check_server(superlink, ca)
    environment = flower_environment(node.path / "flwr")
    warm = wanted()
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
        process.company = [start_warm(node.path / "warm", environment, node.log)]
    return process


def wait_joined(process: Process, node: NodeFolder, superlink: Address) -> int:
    """Wait until the node has joined; return its number there, or raise with the reason why it was refused."""
    try:
        process.wait_for(lambda: _joined(process) is not None, JOIN_SECONDS, f"being let in by {superlink}")
    except FederationError as error:
        reason = refusal(process.said(), node, superlink)
        stop([process])
        raise (FederationError(reason) if reason else error) from error
    number = _joined(process)
    if number is None:
        raise FederationError(f"{process.name} said nothing of its number; {process.last_words()}")
    return number


def node_config(config: Mapping[str, Value]) -> str:
    """Return the node's configuration as Flower's command line takes it.

    >>> node_config({"clients": "0,3", "partition-id": 0, "fast": True})
    'clients="0,3" partition-id=0 fast=true'
    """
    for key, value in config.items():
        if not _KEY.fullmatch(key):
            raise ConfigError(f"'{key}' cannot be a key of a node's configuration; use letters, digits, '-' and '_'")
        if isinstance(value, str) and ('"' in value or "\n" in value):
            raise ConfigError(f"{key}: a value of a node's configuration may not hold quotation marks or line breaks")
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items())


def _joined(process: Process) -> int | None:
    found = _JOINED.search(process.said())
    return int(found[1]) if found else None
