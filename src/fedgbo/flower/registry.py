"""The registered nodes of a server: their names, keys and client numbers, in the file nodes.json.

Flower knows a node by its key. This file binds the key to the clients that the node may host. The proxy and the
server's app read it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedgbo.core import ConfigError, RunFolderError
from fedgbo.core.files import lock, write_atomic

FILE = "nodes.json"
PRIVATE_FILE = 0o600
MOST_CLIENTS = 100_000  # up to which the numbers of two nodes are compared
MOST_LISTED = 12  # clients in a sentence
_PART = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)|::(?P<step>[1-9]\d*))?")


@dataclass(frozen=True)
class Node:
    """A registered node."""

    name: str
    id: int  # Flower's
    key: str  # public, PEM
    clients: str  # numbers, such as 0-4 or 0::3
    since: str

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the key, to compare by telephone."""
        return fingerprint(self.key.encode())


def fingerprint(key: bytes) -> str:
    """Return the first 32 hexadecimal digits of a public key's SHA-256."""
    return hashlib.sha256(key).hexdigest()[:32]


class Registry:
    """The file nodes.json in a server's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait for others who change the file, and keep them from it meanwhile."""
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        with os.fdopen(handle, "r+b") as file:
            lock(file, wait=True)
            yield

    def nodes(self) -> dict[str, Node]:
        """Return the nodes by name."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return {name: Node(name=name, **about) for name, about in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{self.path} is damaged: {error}; restore it, or remove it and register") from error

    def by_id(self) -> dict[int, Node]:
        """Return the nodes by Flower's ids."""
        return {node.id: node for node in self.nodes().values()}

    def clients(self) -> int:
        """Return how many clients the nodes host, numbered from 0; 0 if that is left open, as by `0::3`."""
        sets = [node.clients for node in self.nodes().values()]
        if any("::" in numbers for numbers in sets):
            return 0
        return max((client_numbers(numbers, MOST_CLIENTS)[-1] + 1 for numbers in sets), default=0)

    def check_new(self, name: str, key: bytes, clients: str) -> None:
        """Raise ConfigError unless a node with this name, key and client numbers can be added."""
        mine = set(client_numbers(clients, MOST_CLIENTS))
        for other in self.nodes().values():
            if other.name == name and other.key.encode() != key:
                raise ConfigError(
                    f"another node is registered as {name}; choose another name for the key, or remove the old node: "
                    f"fedgbo federation unregister SERVER {name}"
                )
            if other.name != name and other.key.encode() == key:
                raise ConfigError(f"this key is registered as {other.name}; a node has one key and one name")
            both = mine & set(client_numbers(other.clients, MOST_CLIENTS))
            if other.name != name and both:
                raise ConfigError(f"{in_words(sorted(both))} of {name} already belongs to {other.name}; give others")

    def add(self, name: str, number: int, key: bytes, clients: str) -> None:
        """Add a node, or change its clients."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({**self.nodes(), name: Node(name, number, key.decode(), clients, now)})

    def remove(self, name: str) -> Node:
        """Remove a node and return it."""
        nodes = self.nodes()
        if name not in nodes:
            raise ConfigError(f"no node is registered as {name} (registered: {', '.join(nodes) or 'none'})")
        removed = nodes.pop(name)
        self._write(nodes)
        return removed

    def _write(self, nodes: Mapping[str, Node]) -> None:
        tables = {name: {k: v for k, v in asdict(node).items() if k != "name"} for name, node in nodes.items()}
        write_atomic(self.path, (json.dumps(tables, indent=1) + "\n").encode())
        self.path.chmod(PRIVATE_FILE)


def client_numbers(text: str, clients: int) -> list[int]:
    """Return the numbers below `clients` in a set; an open set such as `1::3` ends there, others are not cut off.

    >>> client_numbers("0-2,7", 10), client_numbers("1::3", 8)
    ([0, 1, 2, 7], [1, 4, 7])
    """
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        found = _PART.fullmatch(part)
        if found is None or int(found["last"] or found["first"]) < int(found["first"]):
            raise ConfigError(f"clients must be numbers such as 0 or 0,3,6 or 0-4 or 1::3, not '{text}'")
        first = int(found["first"])
        if found["step"]:
            numbers |= set(range(first, clients, int(found["step"])))
        else:
            last = min(int(found["last"] or first), max(first, clients))  # one too large is enough to be refused
            numbers |= set(range(first, last + 1))
    return sorted(numbers)


def in_words(numbers: Sequence[int]) -> str:
    """Return client numbers in words.

    >>> in_words([3]), in_words([0, 2]), in_words(list(range(20)))
    ('client 3', 'clients 0, 2', '20 clients: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...')
    """
    if len(numbers) == 1:
        return f"client {numbers[0]}"
    listed = ", ".join(map(str, numbers[:MOST_LISTED]))
    if len(numbers) <= MOST_LISTED:
        return f"clients {listed}" if numbers else "no clients"
    return f"{len(numbers)} clients: {listed}, ..."
