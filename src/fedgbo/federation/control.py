"""A client of a SuperLink's Control API: registers and lists nodes, starts, stops and lists runs.

It uses Flower's own HTTP client, without its command line, which takes seconds to start, and returns plain data.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, FederationError, RunFolderError
from fedgbo.federation.credentials import check_name, require_flower
from fedgbo.federation.network import Address, check_server
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.registry import Registry, fingerprint

KEY_IN_USE = 23  # Flower's ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE


@dataclass(frozen=True)
class Status:
    """The status of a run, in Flower's words."""

    stage: str  # pending, starting, running, finished
    outcome: str  # completed, failed, stopped; empty until it is finished
    details: str


class _RefusedError(FederationError):
    """A refusal by the server, with Flower's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NoAnswer(FederationError):  # noqa: N818 - it may answer again
    """The server did not answer, or had an internal error."""


@dataclass(frozen=True)
class Started:
    """A run that was started: its number, and the hash of its app, which nodes can pin."""

    number: int
    app_sha256: str


@dataclass(frozen=True)
class Connection:
    """A registered node as Flower sees it."""

    id: int
    online: bool
    changed: str  # when it connected or left last; empty if it never did


@dataclass(frozen=True)
class Control:
    """A connection to a SuperLink's Control API."""

    server: ServerFolder
    address: Address
    client: Any

    def register(self, registry: Registry, public_key: bytes, name: str, clients: str) -> bool:
        """Register a node for these clients, or change the clients of one; return whether it is new."""
        check_name(name)
        with registry.locked():
            registry.check_new(name, public_key, clients)
            new = name not in registry.nodes()
            try:
                number = int(self._call("RegisterNode", public_key=public_key, name=name).node_id)
            except _RefusedError as error:
                if error.code != KEY_IN_USE:
                    raise
                number = self._known_to_flower(public_key)
            registry.add(name, number, public_key, clients)
        self.server.audit("register", node=name, key=fingerprint(public_key), clients=clients)
        return new

    def unregister(self, registry: Registry, name: str) -> None:
        """Remove a node: the proxy refuses its calls, and runs do not use it.

        Flower keeps it: it would never again accept a key that was removed there, and the node could not come back.
        """
        with registry.locked():
            node = registry.remove(name)
        self.server.audit("unregister", node=name, key=node.fingerprint)

    def _known_to_flower(self, public_key: bytes) -> int:
        """Return Flower's id of the node with this key."""
        node = next(node for node in self._call("ListNodes").nodes_info if node.public_key == public_key)
        if node.status == "unregistered":
            raise ConfigError(
                "this key was removed with Flower's own command, and Flower does not accept it again; make a new key: "
                "fedgbo federation key NAME"
            )
        return int(node.node_id)

    def connections(self) -> dict[int, Connection]:
        """Return how Flower sees the registered nodes, by id."""
        found = {}
        for node in self._call("ListNodes").nodes_info:
            online = node.status == "online"
            changed = node.last_activated_at if online else node.last_deactivated_at
            found[int(node.node_id)] = Connection(int(node.node_id), online, str(changed))
        return found

    def start(self, app: Path, config: Mapping[str, Any]) -> Started:
        """Start a run of the app in a folder; `config` overrides the app's own."""
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.supercore.fab import Fab

        content, sha256 = bundle(app)
        fab = fab_to_proto(Fab(sha256, content, {}))
        answer = self._call("StartRun", fab=fab, override_config=user_config_to_proto(dict(config)))
        if not answer.HasField("run_id"):
            raise FederationError(f"the server at {self.address} did not start the run")
        self.server.audit("start", run=int(answer.run_id), app=str(app), app_sha256=sha256, options=dict(config))
        return Started(int(answer.run_id), sha256)

    def runs(self) -> dict[int, Status]:
        """Return all runs that the server knows, with their status."""
        runs = self._call("ListRuns").run_dict.items()
        return {int(number): Status(r.status.status, r.status.sub_status, r.status.details) for number, r in runs}

    def status(self, run: int) -> Status:
        """Return a run's status."""
        for found in self._call("ListRuns", run_id=run).run_dict.values():
            return Status(found.status.status, found.status.sub_status, found.status.details)
        raise FederationError(f"the server at {self.address} has no run {run}")

    def stop(self, run: int) -> None:
        """Stop a run."""
        self.server.audit("stop", run=run)
        self._call("StopRun", run_id=run)

    def _call(self, method: str, **fields: Any) -> Any:
        """Call a method of the API; its request has the method's name and `Request`."""
        import httpx
        from flwr.proto import control_pb2
        from flwr.supercore.error import FlowerError

        try:
            return getattr(self.client, method)(getattr(control_pb2, f"{method}Request")(**fields))
        except httpx.HTTPStatusError as error:
            refusal = FlowerError.from_json(error.response.text)
            if refusal is None or error.response.status_code >= 500:
                raise NoAnswer(f"the server at {self.address} answered: {error}") from error
            text = " ".join(filter(None, [refusal.message, refusal.public_details]))
            raise _RefusedError(f"the server at {self.address} refused: {text}", refusal.code) from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"the connection to the server at {self.address} broke: {error}") from error


def bundle(app: Path) -> tuple[bytes, str]:
    """Return the content of the app in a folder as Flower sends it, and its SHA-256."""
    from flwr.cli.build import build_fab_from_disk

    try:
        content = build_fab_from_disk(app)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{app} is not a Flower app: {error}; make one: fedgbo federation new DIR") from error
    return content, hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class _Bearer:
    """Sends the server's secret with each call."""

    secret: str

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["authorization"] = f"Bearer {self.secret}"
        return call_next(context)


@contextmanager
def control(server: ServerFolder) -> Iterator[Control]:
    """Connect to the running server's Control API with its secret, which only the server's user can read."""
    require_flower()
    address = server.control()
    try:
        check_server(address, server.ca)
    except FederationError as error:
        command = f"fedgbo federation serve {server.path}"
        raise FederationError(f"{error} If no server runs from {server.path}, start it with: {command}") from error
    try:
        secret = server.secret.read_text(encoding="ascii").strip()
    except OSError as error:
        raise RunFolderError(
            f"{server.secret} cannot be read ({error.strerror}); operate a server as the user who runs it"
        ) from error
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        server_address=str(address),
        insecure=False,
        root_certificates=server.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedgbo"), _Bearer(secret)],
    )
    try:
        yield Control(server, address, client)
    finally:
        client.close()
