"""A client of a SuperLink's Control API: registers nodes, starts, stops and queries runs.

It uses Flower's own HTTP client, without its command line, which takes seconds to start, and returns plain data.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, FederationError
from fedgbo.federation.credentials import require_flower
from fedgbo.federation.network import Address, check_server

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


@dataclass(frozen=True)
class Control:
    """A connection to a SuperLink's Control API."""

    address: Address
    client: Any

    def register(self, public_key: bytes, name: str) -> int | None:
        """Register a node; return its id, or None if it was registered before."""
        try:
            return int(self._call("RegisterNode", public_key=public_key, name=name).node_id)
        except _RefusedError as error:
            if error.code == KEY_IN_USE:
                return None
            raise

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of the app in a folder; `config` overrides the app's own. Return the run's id."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.supercore.fab import Fab

        try:
            bundle = build_fab_from_disk(app)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{app} is not a Flower app: {error}; make one: fedgbo federation new DIR") from error
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        answer = self._call("StartRun", fab=fab, override_config=user_config_to_proto(dict(config)))
        if not answer.HasField("run_id"):
            raise FederationError(f"the server at {self.address} did not start the run")
        return int(answer.run_id)

    def status(self, run: int) -> Status:
        """Return a run's status."""
        for found in self._call("ListRuns", run_id=run).run_dict.values():
            return Status(found.status.status, found.status.sub_status, found.status.details)
        raise FederationError(f"the server at {self.address} knows no run {run}")

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._call("StopRun", run_id=run)

    def log(self, run: int) -> Iterator[str]:
        """Yield the log of the server's app in pieces, until the run is over."""
        for piece in self._call("StreamLogs", run_id=run, after_timestamp=0.0):
            yield str(piece.log_output)

    def _call(self, method: str, **fields: Any) -> Any:
        """Call a method of the API; its request has the method's name and `Request`."""
        import httpx
        from flwr.proto import control_pb2
        from flwr.supercore.error import FlowerError

        try:
            return getattr(self.client, method)(getattr(control_pb2, f"{method}Request")(**fields))
        except httpx.HTTPStatusError as error:
            refusal = FlowerError.from_json(error.response.text)
            if refusal is None:
                raise FederationError(f"the server at {self.address} answered: {error}") from error
            text = " ".join(filter(None, [refusal.message, refusal.public_details]))
            raise _RefusedError(f"the server at {self.address} refused: {text}", refusal.code) from error
        except httpx.HTTPError as error:
            raise FederationError(f"the connection to the server at {self.address} broke: {error}") from error


@contextmanager
def control(address: Address, ca: Path | None) -> Iterator[Control]:
    """Connect to the SuperLink at `address`, verified with the authority's certificate `ca`; without TLS if None."""
    require_flower()
    check_server(address, ca)
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        server_address=str(address),
        insecure=ca is None,
        root_certificates=None if ca is None else ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedgbo")],
    )
    try:
        yield Control(address, client)
    finally:
        client.close()
