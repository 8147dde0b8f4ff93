"""A whole federation on this machine: a SuperLink and SuperNodes on loopback, with TLS and keys as in production.

app/         the app, with settings.toml
server/      certificates, the SuperLink's log
node-0/ ...  each node's key and log
run/         the run folder, as `fedgbo run` writes it, with events.jsonl
server.log   the server app's log
federation.json
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, RunFolderError, whole
from fedgbo.federation.app_folder import SETTINGS, check_new, write_app
from fedgbo.federation.control import Control, control
from fedgbo.federation.credentials import (
    NodeFolder,
    make_certificates,
    make_node,
    private_folder,
    read_public_key,
    require_flower,
)
from fedgbo.federation.network import LOOPBACK, Address, free_ports
from fedgbo.federation.processes import Process, stop
from fedgbo.federation.superlink import ServerFolder, start_superlink
from fedgbo.federation.supernode import ConfigValue, start_supernode, wait_joined
from fedgbo.runs.config import RunConfig
from fedgbo.runs.files import write_atomic

MOST_NODES = 64  # on one machine: each is several processes


class LocalFolder:
    """The paths in a local federation's folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.app, self.run, self.log = path, path / "app", path / "run", path / "server.log"
        self.server = ServerFolder(path / "server")

    @property
    def nodes(self) -> list[NodeFolder]:
        try:
            count = json.loads((self.path / "federation.json").read_text(encoding="utf-8"))["nodes"]
            whole("nodes", count)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self.path} holds no federation that can be resumed: {error}") from error
        return [NodeFolder(self.path / f"node-{number}") for number in range(count)]


@dataclass(frozen=True)
class Running:
    """A federation whose processes run."""

    control: Control
    processes: Sequence[Process]  # the SuperLink first
    names: Mapping[int, str]  # of the nodes, by Flower's ids


def prepare(path: Path, config: RunConfig, nodes: int, options: Mapping[str, Any]) -> LocalFolder:
    """Write everything that a new federation needs into a new private folder."""
    require_flower()
    whole("nodes", nodes)
    if nodes > MOST_NODES:
        raise ConfigError(f"{nodes} nodes are too many for one machine; at most {MOST_NODES}")
    folder = LocalFolder(path.absolute())
    check_new(folder.path, f"resume it (--resume {path}), or choose another folder")
    private_folder(folder.path)
    write_app(folder.app, config, options, link=True)
    make_certificates(folder.server.path)
    write_atomic(folder.path / "federation.json", (json.dumps({"nodes": nodes}) + "\n").encode())
    for node in folder.nodes:
        make_node(node.path)
    return folder


def overrides(settings: Path, run_folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the app configuration that starts a run, or resumes it if the run folder exists."""
    paths = {"settings": str(settings.absolute()), "run-folder": str(run_folder.absolute())}
    return {**paths, "resume": (run_folder / "run.json").exists(), **options}


def start_run(folder: LocalFolder, running: Running) -> int:
    """Start or resume the run; return its id."""
    return running.control.start(folder.app, overrides(folder.app / SETTINGS, folder.run, {}))


@contextmanager
def running(
    folder: LocalFolder,
    tell: Callable[[str], None],
    config: Callable[[int], Mapping[str, ConfigValue]] | None = None,
) -> Iterator[Running]:
    """Start all processes, wait until every node has joined, and stop them all in the end.

    `config` gives each node's configuration; by default node i of n hosts the clients c with c mod n = i.
    """
    nodes = folder.nodes
    link_port, *ports = free_ports(1 + len(nodes))
    processes: list[Process] = []
    try:
        processes.append(start_superlink(folder.server, Address(LOOPBACK, link_port), keep=False))
        address, ca = folder.server.address(), folder.server.ca
        tell(f"the SuperLink answers at {address}, with TLS; nodes are authenticated by their keys")
        with control(address, ca) as to_server:
            for node in nodes:
                to_server.register(read_public_key(node.public_key), node.name)
            for number, (node, port) in enumerate(zip(nodes, ports, strict=True)):
                own = config(number) if config else {"partition-id": number, "num-partitions": len(nodes)}
                processes.append(start_supernode(node, address, ca, own, port))
            started = zip(nodes, processes[1:], strict=True)
            names = {wait_joined(process, node, address): node.name for node, process in started}
            tell(f"{len(nodes)} nodes have joined")
            yield Running(to_server, processes, names)
    finally:
        stop(processes)
        folder.server.forget()
