"""A node: Flower's SuperNode with the process of its apps, why a server refuses it, and what its log says."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import rmtree

from fedgbo.core import ConfigError, FederationError
from fedgbo.federation.credentials import NodeFolder, make_certificates, write_secret
from fedgbo.federation.launch import PACE
from fedgbo.federation.network import LOOPBACK, Address, free_ports
from fedgbo.federation.processes import LAUNCH, Process, Tail, flower_environment, stop, without_colours
from fedgbo.federation.superlink import ServerFolder

JOIN_SECONDS = 180.0  # about 8 on an idle machine, more when several start at once
STALE_SECONDS = 120.0  # by then the server has forgotten the last connection of a node that was killed
RETRY_SECONDS = 5.0
ConfigValue = str | int | float | bool
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JOINED = re.compile(r"SuperNode ID: (\d+)")
_STALE, _TAKEN = "Failed to activate SuperNode", "address already in use"
_REFUSALS = {  # patterns in a node's log, and the messages for them
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
    (re.compile(r"(an app's process .* was killed by \w+)"), r"\1"),
    (re.compile(r"Connection attempt failed"), "the server does not answer; trying again"),
    (re.compile(r"Connection successful"), "the server answers again"),
)


class StaleConnection(FederationError):  # noqa: N818 - ends by itself
    """The server takes the node for connected already."""


class TakenPort(FederationError):  # noqa: N818 - the next port is another one
    """Another process took the node's port on this machine before the node did."""


def start_node(
    node: NodeFolder,
    superlink: Address,
    ca: Path,
    config: Mapping[str, ConfigValue],
    *,
    any_app: bool = False,
    pace: float = 1.0,
) -> Process:
    """Start a SuperNode that connects to `superlink`, and the process that runs its apps.

    `config` says which clients it hosts, among other things. Only allowed apps run, unless `any_app`. `pace` is the
    number of seconds after which they ask for work again. A certificate, new at each start, tells the apps who their
    node is: another user of the machine could take its port, and give them work.
    """
    node.check()
    inside = ServerFolder(node.path / "inside")
    rmtree(inside.path, ignore_errors=True)
    make_certificates(inside.path)
    secret, settings = node.path / "tasks.secret", node.path / "settings"
    write_secret(secret)
    write_secret(settings, f"--node-config\n{node_config(config)}" if config else "")
    port = str(free_ports(1)[0])
    guard = ["--superexec-auth-secret-file", str(secret)]
    supernode = [*LAUNCH, "supernode", str(settings), "--superlink", str(superlink)]
    supernode += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(node.private_key)]
    supernode += ["--isolation", "process", *guard, "--host", LOOPBACK, "--port", port]
    supernode += ["--ssl-ca-certfile", str(inside.ca), "--ssl-certfile", str(inside.certificate)]
    supernode += ["--ssl-keyfile", str(inside.key)]
    tasks = [*LAUNCH, "superexec", "-" if any_app else str(node.apps)]
    tasks += ["--runtime-api-address", f"{LOOPBACK}:{port}", "--root-certificates", str(inside.ca), *guard]
    environment = {**flower_environment(node.path / "flwr"), PACE: str(pace)}
    process = Process.start(f"node {node.name}", supernode, environment, node.log)
    process.helpers = [Process.start(f"the process of {node.name}'s apps", tasks, environment, node.log)]
    return process


def wait_joined(process: Process, node: NodeFolder, superlink: Address) -> int:
    """Wait until the node has joined and return its Flower id; raise FederationError if it was refused."""
    try:
        process.wait_for(lambda: bool(_JOINED.search(process.output())), JOIN_SECONDS, f"being accepted by {superlink}")
    except FederationError as error:
        log = process.output()
        stop([process])
        if _STALE in log:
            still = f"the server at {superlink} still considers {node.name} connected (for some seconds after a crash)"
            raise StaleConnection(still) from error
        if _TAKEN in log.lower():
            raise TakenPort("another process has just taken the node's port on this machine") from error
        version = next((line.strip() for line in log.splitlines() if "version" in line.lower()), "")
        for pattern, message in _REFUSALS.items():
            if re.search(pattern, log, re.IGNORECASE):
                raise FederationError(message.format(node=node, server=superlink, version=version)) from error
        raise
    return int(_JOINED.findall(process.output())[0])


def start_joined(
    start: Callable[[], Process], node: NodeFolder, superlink: Address, tell: Callable[[str], None]
) -> Process:
    """Start a node and wait until it has joined; wait for Flower to forget its last connection if it was killed."""
    end = time.monotonic() + STALE_SECONDS
    while True:
        process = start()
        try:
            wait_joined(process, node, superlink)
            return process
        except StaleConnection as error:
            if time.monotonic() > end:
                raise FederationError(f"{error}; is it running elsewhere with the same key?") from error
            tell(f"{error}; trying again")
            time.sleep(RETRY_SECONDS)
        except TakenPort as error:
            if time.monotonic() > end:
                raise
            tell(f"{error}; trying another one")
        except BaseException:
            stop([process])
            raise


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

    def __init__(self, log: Path) -> None:
        """Skip what the log has already."""
        self._tail, self._last = Tail(log, log.stat().st_size if log.exists() else 0), ""

    def new(self) -> Iterator[str]:
        """Yield the news since the last call: rounds, refusals and connections, nothing twice in a row."""
        for line in self._tail.lines():
            for pattern, message in _NEWS:
                found = pattern.search(without_colours(line))
                if found is not None and (news := found.expand(message)) != self._last:
                    self._last = news
                    yield news
