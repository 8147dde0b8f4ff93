"""Flower's SuperLink: the server that nodes connect to, with TLS and nodes known by their keys."""

from pathlib import Path

from fedgbo.core.errors import ConfigError
from fedgbo.federation.addresses import Address, check_free, is_loopback, reachable_here
from fedgbo.federation.environment import flower_command, flower_environment
from fedgbo.federation.handshake import answers
from fedgbo.federation.process import Process, stop
from fedgbo.federation.secret_files import PRIVATE_FILE
from fedgbo.federation.server_folder import ServerFolder

READY_SECONDS = 120.0  # about 6 on an idle machine


def start_superlink(server: ServerFolder, listen: Address, *, insecure: bool = False, keep: bool = True) -> Process:
    """Start a SuperLink on `listen` and wait until it answers.

    With `keep`, registered nodes are remembered in the server's folder; otherwise they are forgotten at the end.
    `insecure` is plain HTTP without node authentication, which is allowed on this machine's loopback interface only.
    """
    if insecure and not is_loopback(listen.host):
        raise ConfigError(
            f"without TLS the server may listen on this machine only (127.0.0.1), not on {listen.host}; make "
            f"certificates with: fedgbo federation certs {server.path}"
        )
    if not insecure:
        server.check()
    check_free(listen.host, listen.port)
    environment = flower_environment(server.home)
    command = [flower_command("flower-superlink", environment), "--host", listen.host, "--port", str(listen.port)]
    command += ["--disable-runtime-dependency-installation"]
    command += ["--insecure"] if insecure else _tls(server)
    if keep:
        _touch_private(server.database)
        command += ["--database", str(server.database)]
    here = Address(reachable_here(listen.host), listen.port)
    process = Process.start("the SuperLink", command, environment, server.log)
    try:
        process.wait_for(lambda: answers(here, None if insecure else server.ca), READY_SECONDS, f"an answer at {here}")
    except BaseException:
        stop([process])
        raise
    server.note(here)
    return process


def exposure(listen: Address) -> str | None:
    """Say what listening on `listen` exposes; None if it is this machine only."""
    if is_loopback(listen.host):
        return None
    return (
        f"{listen} can be reached from other machines. Nodes are known by their keys, but the open edition of Flower "
        "does not protect its Control API, which has the same port: whoever reaches it can register nodes and start "
        "runs, that is run code of theirs on this machine and on every node. Let only the nodes' addresses through the "
        "firewall, or put a proxy in front that passes on nothing but /v1/fleet/; see docs/federation.md"
    )


def _tls(server: ServerFolder) -> list[str]:
    files = ["--ssl-ca-certfile", server.ca, "--ssl-certfile", server.certificate, "--ssl-keyfile", server.key]
    return [*map(str, files), "--enable-supernode-auth"]


def _touch_private(path: Path) -> None:
    path.touch(mode=PRIVATE_FILE, exist_ok=True)
    path.chmod(PRIVATE_FILE)
