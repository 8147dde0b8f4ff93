"""Names, addresses and ports."""

import ipaddress
import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from fedgbo.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True)
class Address:
    """Where a server listens: a host's name or IP address, and a port."""

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
            raise ConfigError(f"'{text}' is no address; give host:port, e.g. fl.example.org:8000 or 127.0.0.1:8000")
        host = host.removeprefix("[").removesuffix("]")
        check_host(host)
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_host(host: str) -> None:
    """Raise unless `host` is an IP address or a host's name, without anything around it."""
    if ip_of(host) is not None:
        return
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise ConfigError(
            f"'{host}' is neither a host's name nor an IP address; give it alone, without https:// and without a port, "
            "e.g. fl.example.org"
        )


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that `host` is, or None for a name."""
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


def reachable_here(host: str) -> str:
    """Return how this machine reaches a server that listens on `host`."""
    return LOOPBACK if host in EVERYWHERE else host


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback interface that nothing listens on right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def check_free(host: str, port: int) -> None:
    """Raise unless something may listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or --host"
            ) from error
