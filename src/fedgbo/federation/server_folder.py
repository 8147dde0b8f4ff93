"""The server's folder: its certificates, the registered nodes, what Flower keeps there, its logs."""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core.errors import RunFolderError
from fedgbo.federation.addresses import Address
from fedgbo.federation.extras import require_flower
from fedgbo.federation.secret_files import check_private
from fedgbo.runs.files import write_atomic


@dataclass(frozen=True)
class ServerFolder:
    """Where things lie in it."""

    path: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate, which every node needs."""
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.path / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.path / "server.key"

    @property
    def database(self) -> Path:
        """Which nodes are registered, and Flower's runs."""
        return self.path / "superlink.db"

    @property
    def home(self) -> Path:
        """Flower's home."""
        return self.path / "flwr"

    @property
    def log(self) -> Path:
        """What the SuperLink says."""
        return self.path / "superlink.log"

    def check(self) -> None:
        """Raise unless the certificates are there, closed to others and valid today."""
        require_flower()
        from cryptography import x509

        missing = [file.name for file in (self.ca, self.certificate, self.key) if not file.exists()]
        if missing:
            raise RunFolderError(
                f"{self.path} lacks {', '.join(missing)}; make them with: fedgbo federation certs {self.path}"
            )
        check_private(self.key)
        now = datetime.datetime.now(datetime.UTC)
        for file in (self.ca, self.certificate):
            try:
                end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
            except ValueError as error:
                raise RunFolderError(f"{file} is no certificate: {error}") from error
            if end < now:
                raise RunFolderError(
                    f"{file} ran out on {end:%Y-%m-%d}; move it and its key away, then: fedgbo federation certs "
                    f"{self.path}"
                )

    def note(self, address: Address) -> None:
        """Write down where the server can be reached from this machine."""
        write_atomic(self._note, (json.dumps({"host": address.host, "port": address.port}) + "\n").encode())

    def forget(self) -> None:
        """Say that the server is not running."""
        self._note.unlink(missing_ok=True)

    def address(self) -> Address:
        """Return where the server can be reached from this machine."""
        try:
            content = json.loads(self._note.read_text(encoding="utf-8"))
            return Address(str(content["host"]), int(content["port"]))
        except FileNotFoundError as error:
            raise RunFolderError(
                f"no server runs from {self.path}; start it with: fedgbo federation serve {self.path}"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self._note} is damaged: {error}; remove it and start the server again") from error

    @property
    def _note(self) -> Path:
        return self.path / "server.json"
