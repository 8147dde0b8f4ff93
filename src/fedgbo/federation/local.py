"""A whole federation on this machine: a SuperLink and SuperNodes on loopback, with TLS and keys as in production.

app/         the app, with settings.toml
server/      certificates, logs of the SuperLink, of the server's app and of the proxy
node-0/ ...  each node's key and log
run/         the run folder, as `fedgbo run` writes it, with events.jsonl
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, FederationError, RunFolderError, whole
from fedgbo.federation.app_folder import OPTIONS, SETTINGS, check_new, write_app
from fedgbo.federation.control import Control, control
from fedgbo.federation.credentials import (
    NodeFolder,
    make_certificates,
    make_node,
    private_folder,
    read_public_key,
    require_flower,
    user_name,
)
from fedgbo.federation.network import LOOPBACK, Address, free_ports
from fedgbo.federation.processes import Process, Service, stop
from fedgbo.federation.superlink import ServerFolder, start_server
from fedgbo.federation.supernode import ConfigValue, start_node, wait_joined
from fedgbo.flower.registry import Registry
from fedgbo.runs.config import RunConfig

MOST_NODES = 64  # on one machine: each is several processes, which need about 350 MB together
QUICK = 10  # nodes that may ask for work every second; more of them ask less often, as each question takes 20 ms
AT_ONCE = 4  # nodes that start at the same time; if all did, the server could not answer some in time
NODE_SECONDS = 10.0  # in which each node is ready for a run, when all share a few cores


class LocalFolder:
    """The paths in a local federation's folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.app, self.run = path, path / "app", path / "run"
        self.server = ServerFolder(path / "server")

    @property
    def nodes(self) -> list[NodeFolder]:
        """The nodes that `prepare` made; raise RunFolderError if there are none."""
        count = len(list(self.path.glob("node-*/node.key")))
        if not count:
            raise RunFolderError(f"{self.path} has no federation that can be resumed")
        return [NodeFolder(self.path / f"node-{number}") for number in range(count)]


@dataclass(eq=False)
class Running:
    """A federation whose processes run."""

    control: Control
    server: Sequence[Process]
    nodes: Sequence[Process]
    told: set[Process] = field(default_factory=set)  # nodes that were reported as lost

    @property
    def processes(self) -> list[Process]:
        """All processes, with the nodes' helpers."""
        return [one for process in (*self.server, *self.nodes) for one in (process, *process.helpers)]

    def lost(self) -> list[Process]:
        """Return the nodes' processes that ended since the last call; raise if one of the server's ended."""
        for process in self.server:
            if not process.alive:
                raise FederationError(f"{process.name} has exited; {process.last_words()}")
        nodes = [one for process in self.nodes for one in (process, *process.helpers)]
        found = [one for one in nodes if not one.alive and one not in self.told]
        self.told |= set(found)
        for process in self.nodes:
            if process in found:
                stop([process])  # its helpers too: another user could take its port, and give them work
                self.told |= set(process.helpers)
        return found


def prepare(path: Path, config: RunConfig, nodes: int, options: Mapping[str, Any]) -> LocalFolder:
    """Write everything that a new federation needs into a new private folder."""
    require_flower()
    whole("nodes", nodes)
    if nodes > MOST_NODES:
        raise ConfigError(f"{nodes} nodes are too many for one machine; at most {MOST_NODES}")
    folder = LocalFolder(path.absolute())
    check_new(folder.path, f"resume it (--resume {path}), or choose another folder")
    private_folder(folder.path)
    patient = {"wait": max(OPTIONS["wait"], NODE_SECONDS * nodes)}
    write_app(folder.app, config, {**patient, **options}, link=True)
    make_certificates(folder.server.path)
    for number in range(nodes):
        make_node(folder.path / f"node-{number}")
    return folder


def overrides(server: ServerFolder, settings: Path, run_folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the app configuration that starts a run, or resumes it if the run folder exists."""
    paths = {"settings": settings, "run-folder": run_folder, "nodes": server.path}
    return {
        **{name: str(path.absolute()) for name, path in paths.items()},
        "started-by": f"{user_name()}@{socket.gethostname()}",
        "started-at": datetime.now(UTC).isoformat(timespec="seconds"),
        "resume": (run_folder / "run.json").exists(),
        **options,
    }


def start_run(folder: LocalFolder, running: Running) -> int:
    """Start or resume the run; return its id."""
    return running.control.start(folder.app, overrides(folder.server, folder.app / SETTINGS, folder.run, {})).number


@contextmanager
def running(
    folder: LocalFolder,
    tell: Callable[[str], None],
    config: Callable[[int], Mapping[str, ConfigValue]] | None = None,
) -> Iterator[Running]:
    """Start all processes, wait until every node has joined, and stop them all in the end.

    `config` gives each node's configuration; by default node i of n hosts the clients c with c mod n = i.
    """
    nodes, services = folder.nodes, list[Service]()
    processes, waiting = list[Process](), list[tuple[Process, NodeFolder]]()
    try:
        services = start_server(folder.server, Address(LOOPBACK, free_ports(1)[0]), keep=False)
        processes += [service.process for service in services]
        address, ca = folder.server.address(), folder.server.ca
        tell(f"the server answers at {address}, with TLS; nodes are authenticated by their keys")
        with control(folder.server) as to_server:
            registry = Registry(folder.server.path)
            for number, node in enumerate(nodes):
                clients = f"{number}::{len(nodes)}"
                to_server.register(registry, read_public_key(node.public_key), node.name, clients)
                own = config(number) if config else {"clients": clients}
                pace = max(1.0, len(nodes) / QUICK)
                processes.append(start_node(node, address, ca, own, any_app=True, pace=pace))
                waiting.append((processes[-1], node))
                if len(waiting) == AT_ONCE:
                    wait_joined(*waiting.pop(0), address)
            for process, node in waiting:
                wait_joined(process, node, address)
            tell(f"{len(nodes)} nodes have joined")
            yield Running(to_server, processes[: len(services)], processes[len(services) :])
    finally:
        stop(processes)
        folder.server.forget()
