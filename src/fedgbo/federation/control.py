"""Words with a SuperLink over its Control API: register nodes, start a run, ask how it goes.

The client is Flower's own, without its command line, which takes seconds to start; its answers become plain data here.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core.errors import ConfigError, FederationError
from fedgbo.federation.addresses import Address
from fedgbo.federation.extras import require_flower
from fedgbo.federation.handshake import check_server

KEY_IN_USE = 23  # Flower's ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE


@dataclass(frozen=True)
class Status:
    """How a run is doing, in Flower's words."""

    stage: str  # pending, starting, running, finished
    outcome: str  # completed, failed, stopped; empty until it is finished
    details: str

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.stage == "finished"


@dataclass(frozen=True)
class Control:
    """A connection to a SuperLink's Control API."""

    address: Address
    client: Any

    def register(self, public_key: bytes, name: str) -> int | None:
        """Let a node in from now on; return its number, or None if it was registered before."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        try:
            answer = self._ask(self.client.RegisterNode, RegisterNodeRequest(public_key=public_key, name=name))
        except _RefusedError as error:
            if error.code == KEY_IN_USE:
                return None
            raise
        return int(answer.node_id)

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of the app in a folder, with `config` over its own; return the run's number."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        try:
            bundle = build_fab_from_disk(app)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{app} is no Flower app: {error}; write one with: fedgbo federation new DIR") from error
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        override = user_config_to_proto(dict(config))
        answer = self._ask(self.client.StartRun, StartRunRequest(fab=fab, override_config=override))
        if not answer.HasField("run_id"):
            raise FederationError(f"the server at {self.address} did not start the run")
        return int(answer.run_id)

    def status(self, run: int) -> Status:
        """Return how a run is doing."""
        from flwr.proto.control_pb2 import ListRunsRequest

        answer = self._ask(self.client.ListRuns, ListRunsRequest(run_id=run))
        for found in answer.run_dict.values():
            return Status(found.status.status, found.status.sub_status, found.status.details)
        raise FederationError(f"the server at {self.address} knows no run {run}")

    def stop(self, run: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._ask(self.client.StopRun, StopRunRequest(run_id=run))

    def log(self, run: int) -> Iterator[str]:
        """Yield what the server's app logs, piece by piece, until the run is over."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        for piece in self._ask(self.client.StreamLogs, StreamLogsRequest(run_id=run, after_timestamp=0.0)):
            yield str(piece.log_output)

    def _ask(self, method: Any, request: Any) -> Any:
        import httpx
        from flwr.supercore.error import FlowerError

        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            told = FlowerError.from_json(error.response.text)
            if told is None:
                raise FederationError(f"the server at {self.address} answered: {error}") from error
            text = " ".join(filter(None, [told.message, told.public_details]))
            raise _RefusedError(f"the server at {self.address} refused: {text}", told.code) from error
        except httpx.HTTPError as error:
            raise FederationError(f"the connection to the server at {self.address} broke: {error}") from error


@contextmanager
def control(address: Address, ca: Path | None) -> Iterator[Control]:
    """Connect to the SuperLink at `address`, checked by the authority's certificate `ca`; without TLS if it is None."""
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


class _RefusedError(FederationError):
    """An answer of the server that says no, with Flower's number for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
