"""Addresses, ports, and the check that a server answers, speaks TLS and is trusted.

The check runs before Flower connects, so that a user reads one sentence instead of a traceback.
"""

import ipaddress
import re
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedgbo.core import ConfigError, FederationError, RunFolderError

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
CONNECT_SECONDS = 10.0
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True)
class Address:
    """The address of a server: a host name or IP address, and a port."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read `host:port`.

        >>> Address.of("fl.example.org:8443")
        Address(host='fl.example.org', port=8443)
        >>> str(Address.of("[::1]:8000"))
        '[::1]:8000'
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ConfigError(f"'{text}' is not an address; give host:port, e.g. fl.example.org:8000 or 127.0.0.1:8000")
        host = host.removeprefix("[").removesuffix("]")
        check_host(host)
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_host(host: str) -> None:
    """Raise ConfigError unless `host` is an IP address or a host name, without scheme or port."""
    if ip_of(host) is not None:
        return
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise ConfigError(
            f"'{host}' is neither a host name nor an IP address; give it alone, without https:// and without a port, "
            "e.g. fl.example.org"
        )


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return `host` as an IP address, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether `host` can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("fl.example.org")
    (True, True, False, False)
    """
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback interface that are free at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def check_free(address: Address) -> None:
    """Raise ConfigError unless a server can listen on `address`."""
    with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}; choose another --port/--host") from error


class UntrustedError(FederationError):
    """The server answers but is not trusted; waiting does not help."""


def check_server(address: Address, ca: Path) -> None:
    """Raise, with the reason, unless the server at `address` speaks TLS and is trusted by the authority `ca`."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except OSError as error:  # SSLError is one
        raise RunFolderError(
            f"{ca} is not the certificate of an authority: {error}; ask the server's administrators for ca.crt"
        ) from error
    try:
        with _connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host):
            return
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(f"refused by this client: {_distrust(address, ca, error)}") from error
    except ssl.SSLError as error:
        raise FederationError(
            f"the server at {address} does not speak TLS ({error.reason or error}); is that its port, and was it "
            "started by fedgbo federation serve?"
        ) from error
    except OSError as error:
        raise FederationError(f"the connection to the server at {address} broke: {error}") from error


def answers(address: Address, ca: Path) -> bool:
    """Return whether the server answers; raise UntrustedError if its certificate is not trusted."""
    try:
        check_server(address, ca)
    except UntrustedError:
        raise
    except FederationError:
        return False
    return True


def _distrust(address: Address, ca: Path, error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message or str(error)
    if "expired" in text or "not yet valid" in text:
        return f"the certificate of the server at {address} is not valid now ({text}); it must be renewed there"
    if "mismatch" in text.lower() or "not valid for" in text:
        return (
            f"the server's certificate is for other names than '{address.host}'; use a name that it was made for, or "
            f"have a new one made with: fedgbo federation certs DIR --host {address.host}"
        )
    return (
        f"the certificate of the server at {address} was not signed by the authority in {ca} ({text}); either this is "
        "the wrong ca.crt, or somebody else answers at that address. Ask the server's administrators for their ca.crt"
    )


def _connect(address: Address) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
    except socket.gaierror as error:
        raise FederationError(f"there is no host '{address.host}' ({error.strerror}); check the name") from error
    except OSError as error:
        raise FederationError(
            f"nothing answers at {address} ({error.strerror or error}); is the server running, is this its port, and "
            "does a firewall block it?"
        ) from error
