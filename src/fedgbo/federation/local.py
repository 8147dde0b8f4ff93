"""A whole federation on this machine: a SuperLink and some SuperNodes on loopback, with TLS and keys as in earnest.

app/         the app, with settings.toml
server/      certificates, the SuperLink's log
node-0/ ...  each node's key and log
run/         the run's folder, as `fedgbo run` writes it, with events.jsonl
server.log   what the server's app logs
federation.json
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.federation.addresses import LOOPBACK, Address, free_ports
from fedgbo.federation.app import SETTINGS, write_app
from fedgbo.federation.certificates import make_certificates
from fedgbo.federation.control import Control, control
from fedgbo.federation.extras import require_flower
from fedgbo.federation.node_keys import NodeFolder, make_node, read_public_key
from fedgbo.federation.process import Process, stop
from fedgbo.federation.secret_files import private_folder
from fedgbo.federation.server_folder import ServerFolder
from fedgbo.federation.superlink import start_superlink
from fedgbo.federation.supernode import Value, start_supernode, wait_joined
from fedgbo.runs.config import RunConfig
from fedgbo.runs.files import write_atomic

MOST_NODES = 64  # on one machine: each is several processes
Tell = Callable[[str], None]


@dataclass(frozen=True)
class LocalFolder:
    """Where things lie in it."""

    path: Path

    @property
    def app(self) -> Path:
        """The app's folder."""
        return self.path / "app"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.path / "run"

    @property
    def log(self) -> Path:
        """What the server's app logs."""
        return self.path / "server.log"

    @property
    def server(self) -> ServerFolder:
        """The server's folder."""
        return ServerFolder(self.path / "server")

    @property
    def nodes(self) -> list[NodeFolder]:
        """The nodes' folders."""
        return [NodeFolder(self.path / f"node-{number}") for number in range(self._count())]

    def _count(self) -> int:
        try:
            count = json.loads((self.path / "federation.json").read_text(encoding="utf-8"))["nodes"]
            whole("nodes", count)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self.path} holds no federation that can go on: {error}") from error
        return int(count)


@dataclass(frozen=True)
class Running:
    """A federation whose processes run."""

    control: Control
    processes: Sequence[Process]  # the SuperLink first
    names: Mapping[int, str]  # of the nodes, by Flower's numbers


def prepare(path: Path, config: RunConfig, nodes: int, options: Mapping[str, Any]) -> LocalFolder:
    """Write everything that a new federation needs, into a new folder that others cannot enter."""
    require_flower()
    whole("nodes", nodes)
    if nodes > MOST_NODES:
        raise ConfigError(f"{nodes} nodes are too many for one machine; at most {MOST_NODES}")
    folder = LocalFolder(path.absolute())
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise RunFolderError(
            f"{path} is there already and not empty; go on with it (--resume {path}), or choose another"
        )
    private_folder(folder.path)
    write_app(folder.app, config, options, link=True)
    make_certificates(folder.server.path)
    write_atomic(folder.path / "federation.json", (json.dumps({"nodes": nodes}) + "\n").encode())
    for node in folder.nodes:
        make_node(node.path)
    return folder


def overrides(settings: Path, run_folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run is started with: where things lie at the server, and whether it was begun before."""
    begun = (run_folder / "run.json").exists()
    paths = {"settings": str(settings.absolute()), "run-folder": str(run_folder.absolute())}
    return {**paths, "resume": begun, **options}


def start_run(folder: LocalFolder, running: Running) -> int:
    """Start the run, or go on with it; return its number."""
    return running.control.start(folder.app, overrides(folder.app / SETTINGS, folder.run, {}))


@contextmanager
def running(
    folder: LocalFolder, tell: Tell, config: Callable[[int], Mapping[str, Value]] | None = None
) -> Iterator[Running]:
    """Start all processes, wait until every node has joined, and end them all whatever happens.

    `config` gives each node's configuration; by default node i of n hosts the clients c with c mod n = i.
    """
    nodes = folder.nodes
    link_port, *ports = free_ports(1 + len(nodes))
    processes: list[Process] = []
    try:
        processes.append(start_superlink(folder.server, Address(LOOPBACK, link_port), keep=False))
        address, ca = folder.server.address(), folder.server.ca
        tell(f"the SuperLink answers at {address}, with TLS; nodes are known by their keys")
        with control(address, ca) as to_server:
            for node in nodes:
                to_server.register(read_public_key(node.public_key), node.name)
            for number, (node, port) in enumerate(zip(nodes, ports, strict=True)):
                own = config(number) if config else {"partition-id": number, "num-partitions": len(nodes)}
                processes.append(start_supernode(node, address, ca, own, port))
            names = {
                wait_joined(process, node, address): node.name
                for node, process in zip(nodes, processes[1:], strict=True)
            }
            tell(f"{len(nodes)} nodes have joined")
            yield Running(to_server, processes, names)
    finally:
        stop(processes)
        folder.server.forget()
