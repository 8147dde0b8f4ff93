"""The server: its folder, and Flower's SuperLink with TLS and nodes authenticated by their keys."""

import datetime
import json
from pathlib import Path

from fedgbo.core import ConfigError, RunFolderError
from fedgbo.federation.credentials import PRIVATE_FILE, check_private, require_flower
from fedgbo.federation.network import EVERYWHERE, LOOPBACK, Address, answers, check_free, is_loopback
from fedgbo.federation.processes import Process, flower_command, flower_environment, stop
from fedgbo.runs.files import write_atomic

READY_SECONDS = 120.0  # about 6 on an idle machine


class ServerFolder:
    """The server's folder: certificates, the database of registered nodes, Flower's files, the SuperLink's log."""

    def __init__(self, path: Path) -> None:
        self.path, self.log, self._note = path, path / "superlink.log", path / "server.json"
        self.ca, self.certificate, self.key = path / "ca.crt", path / "server.crt", path / "server.key"

    def check(self) -> None:
        """Raise RunFolderError unless the certificates exist, are closed to other users and valid today."""
        require_flower()
        from cryptography import x509

        missing = [file.name for file in (self.ca, self.certificate, self.key) if not file.exists()]
        command = f"fedgbo federation certs {self.path}"
        if missing:
            raise RunFolderError(f"{self.path} lacks {', '.join(missing)}; make them with: {command}")
        check_private(self.key)
        now = datetime.datetime.now(datetime.UTC)
        for file in (self.ca, self.certificate):
            try:
                end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
            except ValueError as error:
                raise RunFolderError(f"{file} is not a certificate: {error}") from error
            if end < now:
                raise RunFolderError(f"{file} expired on {end:%Y-%m-%d}; move it and its key away, then: {command}")

    def note(self, address: Address) -> None:
        """Record the address at which this machine reaches the running server."""
        write_atomic(self._note, (json.dumps({"host": address.host, "port": address.port}) + "\n").encode())

    def forget(self) -> None:
        """Record that the server is not running."""
        self._note.unlink(missing_ok=True)

    def address(self) -> Address:
        """Return the address at which this machine reaches the running server."""
        try:
            content = json.loads(self._note.read_text(encoding="utf-8"))
            return Address(str(content["host"]), int(content["port"]))
        except FileNotFoundError as error:
            command = f"fedgbo federation serve {self.path}"
            raise RunFolderError(f"no server runs from {self.path}; start it with: {command}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self._note} is damaged: {error}; remove it and start the server again") from error


def start_superlink(server: ServerFolder, listen: Address, *, insecure: bool = False, keep: bool = True) -> Process:
    """Start a SuperLink on `listen` and wait until it answers.

    With `keep`, registered nodes are stored in the server's folder; otherwise they are lost at the end. `insecure`
    means plain HTTP without node authentication, which is allowed on the loopback interface only.
    """
    if insecure and not is_loopback(listen.host):
        raise ConfigError(
            f"without TLS the server may listen on this machine only (127.0.0.1), not on {listen.host}; make "
            f"certificates with: fedgbo federation certs {server.path}"
        )
    if not insecure:
        server.check()
    check_free(listen)
    environment = flower_environment(server.path / "flwr")
    command = [flower_command("flower-superlink", environment), "--host", listen.host, "--port", str(listen.port)]
    command += ["--disable-runtime-dependency-installation"]
    if insecure:
        command += ["--insecure"]
    else:
        command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(server.ca)]
        command += ["--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)]
    if keep:
        database = server.path / "superlink.db"
        database.touch(mode=PRIVATE_FILE)
        database.chmod(PRIVATE_FILE)
        command += ["--database", str(database)]
    here = Address(LOOPBACK if listen.host in EVERYWHERE else listen.host, listen.port)
    process = Process.start("the SuperLink", command, environment, server.log)
    try:
        process.wait_for(lambda: answers(here, None if insecure else server.ca), READY_SECONDS, f"an answer at {here}")
    except BaseException:
        stop([process])
        raise
    server.note(here)
    return process


def exposure(listen: Address) -> str | None:
    """Return a warning about what listening on `listen` exposes; None if it is this machine only."""
    if is_loopback(listen.host):
        return None
    return (
        f"{listen} can be reached from other machines. Nodes are authenticated by their keys, but the open edition of "
        "Flower does not protect its Control API, which has the same port: whoever reaches it can register nodes and "
        "start runs, that is, run code on this machine and on every node. Let only the nodes' addresses through the "
        "firewall, or put a proxy in front that passes on nothing but /v1/fleet/; see docs/federation.md"
    )
