"""The roster: which node hosts which clients. Nodes may join, leave and rejoin during a run."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedgbo.core import DataError
from fedgbo.flower.messenger import Events, Messenger, SentMessage, pause
from fedgbo.flower.options import Options
from fedgbo.flower.registry import Node, Registry, client_numbers, in_words
from fedgbo.flower.wire import MAX_SAMPLES, Settings, json_in, short, to_content

LOOK_SECONDS = 1.0  # between looks for new nodes
AGAIN_SECONDS = 5.0  # after which a node that was refused is asked again


@dataclass(frozen=True)
class Host:
    """The node that hosts a client, and the client's number of samples."""

    node: int
    samples: int


class Roster:
    """Queries each new node, and refuses those with another version of fedgbo, another model or others' clients."""

    def __init__(self, messenger: Messenger, settings: Settings, options: Options, events: Events) -> None:
        self.clients: dict[int, Host] = {}
        self._messenger, self.settings, self._options, self._events = messenger, settings, options, events
        self._queries: dict[str, SentMessage] = {}  # not yet answered
        self._known: set[int] = set()  # nodes that were queried
        self._offers: dict[int, dict[int, int]] = {}  # clients and samples of each node, in the order of joining
        self._looked = float("-inf")
        self._registered, self._names = dict[int, Node](), dict[int, str]()
        self._read_registry()
        self._refused: dict[int, tuple[str, float]] = {}  # reason, and when the node is asked again
        self._duplicates: dict[int, list[int]] = {}  # nodes that offered a client, in the order of joining

    @property
    def nodes(self) -> int:
        """The number of nodes that take part."""
        return len({host.node for host in self.clients.values()})

    def look(self) -> None:
        """Query new nodes, forget nodes that are gone, and read the answers that have arrived."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            here = self._here()
            now = time.monotonic()
            again = {node for node, (_, due) in self._refused.items() if due <= now}
            self.forget((self._known - here) | (again & self._known - self._asked()))
            self._looked = now
            query = {node: to_content(self.settings) for node in sorted(here - self._known)}
            sent = self._messenger.send("query", query, self._options.wait) if query else {}
            self._known |= set(sent)
            self._queries |= {message.id: message for message in sent.values()}
        for message, reply in self._messenger.fetch(self._queries.values()):
            del self._queries[message.id]
            try:
                if reply.content is None:
                    raise DataError(reply.problem)
                self._join(message.node, reply.content)
            except DataError as error:
                self._refuse(message.node, str(error), time.monotonic() + AGAIN_SECONDS)
            else:
                self._refused.pop(message.node, None)

    def complete(self) -> bool:
        """Whether all clients are hosted, and all registered nodes take part."""
        return len(self.clients) >= self.settings.clients and not self._registered.keys() - self._offers.keys()

    def report(self) -> str:
        """Record which nodes take part, are missing or were refused, and return that in words."""
        joined = {self.name(node): sorted(offer) for node, offer in self._offers.items()}
        refused = {self.name(node): reason for node, (reason, _) in self._refused.items()}
        open_clients = sorted(set(range(self.settings.clients)) - self.clients.keys())
        twice = {client: [self.name(node) for node in nodes] for client, nodes in self._duplicates.items()}
        self._events(
            "nodes", joined=joined, missing=self._missing(), refused=refused, duplicates=twice, unhosted=open_clients
        )
        parts = [f"{len(joined)} of {len(self._registered)} registered nodes" if self._registered else f"{len(joined)}"]
        parts[0] += " take part" if self._registered else " nodes take part"
        parts += [f"{name} is missing" for name in self._missing()]
        parts += [f"{name} was refused: {reason}" for name, reason in refused.items()]
        parts += [f"{in_words(open_clients)} of {self.settings.clients} without a node"] if open_clients else []
        return "; ".join(parts)

    def _here(self) -> set[int]:
        """Return the connected nodes; refuse those that are not, or no longer, registered, or do not deliver."""
        self._read_registry()
        here = self._messenger.nodes()
        strangers = here - self._registered.keys() if self._options.nodes else set()
        for node in strangers:
            reason = "its key is not registered; register it with: fedgbo federation register"
            self._refuse(node, reason, again=math.inf)
        stalling = here & self._messenger.stalling()
        for node in stalling:
            self._refuse(node, "it announced several replies and did not deliver them", again=math.inf)
        return here - strangers - stalling

    def _refuse(self, node: int, reason: str, again: float) -> None:
        """Note why a node is refused, and when it is asked again."""
        before, self._refused[node] = self._refused.get(node), (reason, again)
        if before is None or before[0] != reason:
            self._events("refused", node=self.name(node), reason=reason)

    def _missing(self) -> list[str]:
        """Return the names of registered nodes that have neither joined nor been refused."""
        absent = self._registered.keys() - self._offers.keys() - self._refused.keys()
        return sorted(self._registered[node].name for node in absent)

    def _read_registry(self) -> None:
        if self._options.nodes:
            self._registered = Registry(Path(self._options.nodes)).by_id()
            self._names |= {node: about.name for node, about in self._registered.items()}

    def name(self, node: int) -> str:
        """Return the name that a node is, or was, registered by."""
        return self._names.get(node, f"node {node}")

    def _asked(self) -> set[int]:
        """Return the nodes whose answers are awaited."""
        return {message.node for message in self._queries.values()}

    def wait_for(self, ready: Callable[[], bool], wanted: int) -> None:
        """Look until `ready()` or until the `wait` option's time is over; `wanted` is the needed number of clients."""
        end, reported = time.monotonic() + self._options.wait, -1
        while True:
            self.look()
            if ready() or time.monotonic() >= end:
                return
            if self.nodes != reported:
                reported = self.nodes
                missing = self._missing()
                self._events("waiting", nodes=reported, clients=len(self.clients), wanted=wanted, missing=missing)
            pause(self._options.poll, len(self._queries), end)

    def forget(self, gone: set[int]) -> None:
        """Remove nodes that are gone; one that is connected at the next look, which is due now, is queried again."""
        self._looked = float("-inf")
        self._known -= gone
        self._messenger.drop(message for message in self._queries.values() if message.node in gone)
        self._queries = {key: message for key, message in self._queries.items() if message.node not in gone}
        self._offers = {node: offer for node, offer in self._offers.items() if node not in gone}
        self._assign()

    def _assign(self) -> None:
        """Assign each client to the first node that offered it."""
        self.clients = {}
        for node, offer in self._offers.items():
            for client, samples in offer.items():
                self.clients.setdefault(client, Host(node, samples))

    def _join(self, node: int, content: RecordDict) -> None:
        """Accept a node, or raise DataError with the reason."""
        answer, ours = json_in(content, "answer"), self.settings.version
        if answer.get("version") != ours:
            raise DataError(f"it has fedgbo {short(answer.get('version'), 40)}, the server {ours}; install the same")
        if "error" in answer:
            raise DataError(short(answer["error"], 500))
        if answer.get("model") != self.settings.model:
            raise DataError("its model has other parameters (names, shapes or types) than the server's")
        offer = self._offer(answer)
        self._check_registered(node, offer)
        for client in offer:
            if client in self.clients:
                kept = self.clients[client].node
                self._duplicates.setdefault(client, [kept]).append(node)
                self._events("duplicate", client=client, node=self.name(node), kept=self.name(kept))
        self._offers[node] = offer
        self._assign()
        self._events("joined", node=self.name(node), clients=[c for c in offer if self.clients[c].node == node])

    def _check_registered(self, node: int, offer: Mapping[int, int]) -> None:
        """Raise DataError if a node offers clients that its key is not registered for."""
        if not self._options.nodes:
            return
        allowed = client_numbers(self._registered[node].clients, self.settings.clients)
        if foreign := sorted(offer.keys() - set(allowed)):
            raise DataError(f"it offers {in_words(foreign)}, but its key is registered for {in_words(allowed)}")

    def _offer(self, answer: Mapping[str, Any]) -> dict[int, int]:
        """Return the clients that a node hosts with their numbers of samples; raise DataError if they are invalid."""
        clients, samples = answer.get("clients"), answer.get("samples")
        if not isinstance(clients, list) or not isinstance(samples, list) or len(clients) != len(samples):
            raise DataError("it does not say which clients it hosts")
        for client, count in zip(clients, samples, strict=True):
            if type(client) is not int or not 0 <= client < self.settings.clients:
                raise DataError(
                    f"it says it hosts client {short(client, 40)}, but there are {self.settings.clients} clients"
                )
            if type(count) is not int or not 0 < count <= MAX_SAMPLES:
                raise DataError(f"it says that client {client} has {short(count, 40)} samples")
        return dict(zip(clients, samples, strict=True))
