"""The server: its folder, and its processes: Flower's SuperLink on loopback, the process of its apps, and the proxy."""

import datetime
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgbo.core import FederationError, RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.federation.credentials import PRIVATE_FILE, check_private, require_flower, user_name, write_secret
from fedgbo.federation.network import EVERYWHERE, LOOPBACK, Address, answers, check_free, free_ports
from fedgbo.federation.processes import LAUNCH, Process, Service, Tail, flower_environment, stop

REPLY_MIB = 4096  # that a node may send in a round
READY_SECONDS = 120.0  # about 6 on an idle machine


class ServerFolder:
    """The server's folder: certificates, the database of registered nodes, Flower's files, logs."""

    def __init__(self, path: Path) -> None:
        self.path, self._note = path, path / "server.json"
        self.log, self.app_log, self.proxy_log = (path / f"{name}.log" for name in ("superlink", "apps", "proxy"))
        self.secret, self.task_secret = path / "control.secret", path / "tasks.secret"
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

    def audit(self, what: str, **more: Any) -> None:
        """Append what an operator did to audit.jsonl, with the time and the user."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "user": user_name(), "what": what, **more})
        try:
            handle = os.open(self.path / "audit.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise FederationError(f"{self.path / 'audit.jsonl'} cannot be written: {error.strerror}") from error

    def audited(self, what: str) -> list[dict[str, Any]]:
        """Return the audit's entries of a kind, the last one last."""
        entries = []
        for line in Tail(self.path / "audit.jsonl").lines():
            with suppress(ValueError):  # a line that a full disk cut off
                entries.append(json.loads(line))
        return [entry for entry in entries if entry["what"] == what]

    def note(self, address: Address, control: Address) -> None:
        """Record where nodes reach the running server, and where operators on this machine do."""
        content = {"host": address.host, "port": address.port, "control": control.port}
        write_atomic(self._note, (json.dumps(content) + "\n").encode())

    def forget(self) -> None:
        """Record that the server is not running."""
        self._note.unlink(missing_ok=True)

    def address(self) -> Address:
        """Return the address at which nodes on this machine reach the running server."""
        return self._addresses()[0]

    def control(self) -> Address:
        """Return the address of the running server's Control API, on loopback."""
        return self._addresses()[1]

    def _addresses(self) -> tuple[Address, Address]:
        try:
            content = json.loads(self._note.read_text(encoding="utf-8"))
            address = Address(str(content["host"]), int(content["port"]))
            return address, Address(LOOPBACK, int(content["control"]))
        except FileNotFoundError as error:
            command = f"fedgbo federation serve {self.path}"
            raise RunFolderError(f"no server runs from {self.path}; start it with: {command}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self._note} is damaged: {error}; remove it and start the server again") from error


def start_server(
    server: ServerFolder, listen: Address, *, keep: bool = True, reply_mib: int = REPLY_MIB
) -> list[Service]:
    """Start a SuperLink on loopback, the process of its apps, and the proxy that serves nodes on `listen`.

    With `keep`, registered nodes are stored in the server's folder; otherwise they are lost at the end. A node's reply
    may have `reply_mib` MiB.
    """
    server.check()
    check_free(listen)
    port = free_ports(1)[0]
    inside = Address(LOOPBACK, port)
    here = Address(LOOPBACK if listen.host in EVERYWHERE else listen.host, listen.port)
    write_secret(server.secret)
    write_secret(server.task_secret)
    environment = flower_environment(server.path / "flwr")

    def service(name: str, log: Path, command: Sequence[str], ready: Callable[[], bool]) -> Service:
        def start() -> Process:
            process = Process.start(name, command, environment, log)
            try:
                process.wait_for(ready, READY_SECONDS, "an answer")
            except BaseException:
                stop([process])
                raise
            return process

        return Service(start)

    guard = ["--superexec-auth-secret-file", str(server.task_secret)]
    link = [*LAUNCH, "superlink", str(server.secret), "--host", LOOPBACK, "--port", str(port)]
    link += ["--isolation", "process", *guard, "--disable-runtime-dependency-installation", "--enable-supernode-auth"]
    link += [
        "--ssl-ca-certfile",
        str(server.ca),
        "--ssl-certfile",
        str(server.certificate),
        "--ssl-keyfile",
        str(server.key),
    ]
    if keep:
        database = server.path / "superlink.db"
        database.touch(mode=PRIVATE_FILE)
        database.chmod(PRIVATE_FILE)
        link += ["--database", str(database)]
    tasks = [*LAUNCH, "superexec", "server", *guard]
    tasks += ["--runtime-api-address", str(inside), "--root-certificates", str(server.ca)]
    door = [sys.executable, "-P", "-m", "fedgbo.federation.proxy", str(server.path), listen.host]  # not from "."
    door += map(str, (listen.port, port, reply_mib))
    services: list[Service] = []
    try:
        services.append(service("the SuperLink", server.log, link, lambda: answers(inside, server.ca)))
        services.append(service("the process of the server's apps", server.app_log, tasks, lambda: True))
        services.append(service("the proxy", server.proxy_log, door, lambda: answers(here, server.ca)))
    except BaseException:
        stop(each.process for each in services)
        raise
    server.note(here, inside)
    return services
