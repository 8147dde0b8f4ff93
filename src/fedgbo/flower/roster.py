"""The roster: which node hosts which clients. Nodes may join, leave and rejoin during a run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedgbo.core import DataError
from fedgbo.flower.messenger import Events, Messenger, SentMessage, pause
from fedgbo.flower.options import Options
from fedgbo.flower.wire import MAX_SAMPLES, Settings, json_in, to_content

LOOK_SECONDS = 1.0  # between looks for new nodes


@dataclass(frozen=True)
class Host:
    """The node that hosts a client, and the client's number of samples."""

    node: int
    samples: int


class Roster:
    """Queries each new node once, and refuses nodes with another version of fedgbo or another model."""

    def __init__(self, messenger: Messenger, settings: Settings, options: Options, events: Events) -> None:
        self.clients: dict[int, Host] = {}
        self._messenger, self._settings, self._options, self._events = messenger, settings, options, events
        self._queries: dict[str, SentMessage] = {}  # not yet answered
        self._known: set[int] = set()  # nodes that were queried
        self._offers: dict[int, dict[int, int]] = {}  # clients and samples of each node, in the order of joining
        self._looked = float("-inf")

    @property
    def nodes(self) -> int:
        """The number of nodes that take part."""
        return len({host.node for host in self.clients.values()})

    def look(self) -> None:
        """Query new nodes, forget nodes that are gone, and read the answers that have arrived."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            here = self._messenger.nodes()
            self.forget(self._known - here)
            self._looked = time.monotonic()
            query = {node: to_content(self._settings) for node in sorted(here - self._known)}
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
                self._events("refused", node=message.node, reason=str(error))

    def wait_for(self, ready: Callable[[], bool], wanted: int) -> None:
        """Look until `ready()` or until the `wait` option's time is over; `wanted` is the needed number of clients."""
        end, reported = time.monotonic() + self._options.wait, -1
        while True:
            self.look()
            if ready() or time.monotonic() >= end:
                return
            if self.nodes != reported:
                reported = self.nodes
                self._events("waiting", nodes=reported, clients=len(self.clients), wanted=wanted)
            pause(self._options.poll, end)

    def forget(self, gone: set[int]) -> None:
        """Remove nodes that are gone; one that is connected at the next look, which is due now, is queried again."""
        self._looked = float("-inf")
        self._known -= gone
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
        answer, ours = json_in(content, "answer"), self._settings.version
        if answer.get("version") != ours:
            raise DataError(f"it has fedgbo {str(answer.get('version'))[:40]}, the server {ours}; install the same")
        if "error" in answer:
            raise DataError(str(answer["error"])[:500])
        if answer.get("model") != self._settings.model:
            raise DataError("its model has other parameters (names, shapes or types) than the server's")
        offer = self._offer(answer)
        for client in offer:
            if client in self.clients:
                self._events("duplicate", client=client, node=node, kept=self.clients[client].node)
        self._offers[node] = offer
        self._assign()
        self._events("joined", node=node, clients=[c for c in offer if self.clients[c].node == node])

    def _offer(self, answer: Mapping[str, Any]) -> dict[int, int]:
        """Return the clients that a node hosts with their numbers of samples; raise DataError if they are invalid."""
        clients, samples = answer.get("clients"), answer.get("samples")
        if not isinstance(clients, list) or not isinstance(samples, list) or len(clients) != len(samples):
            raise DataError("it does not say which clients it hosts")
        for client, count in zip(clients, samples, strict=True):
            if type(client) is not int or not 0 <= client < self._settings.clients:
                raise DataError(f"it says it hosts a client {str(client)[:40]}, and there are {self._settings.clients}")
            if type(count) is not int or not 0 < count <= MAX_SAMPLES:
                raise DataError(f"it says that client {client} has {str(count)[:40]} samples")
        return dict(zip(clients, samples, strict=True))
