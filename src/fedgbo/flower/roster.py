"""Who is there: which node hosts which clients. Nodes may come, go and come again while a run goes on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedgbo.core.errors import DataError
from fedgbo.flower.check import MAX_SAMPLES
from fedgbo.flower.events import Events
from fedgbo.flower.options import Options
from fedgbo.flower.order import KEY, Settings, read_json, to_config
from fedgbo.flower.post import Letter, Post, pause

LOOK = 1.0  # seconds between looks for new nodes


@dataclass(frozen=True)
class Hosted:
    """A client's place."""

    node: int
    samples: int


class Roster:
    """Asks each new node who it is, once, and refuses those with another version or another model."""

    def __init__(self, post: Post, settings: Settings, options: Options, events: Events) -> None:
        self.clients: dict[int, Hosted] = {}
        self._post, self._settings, self._options, self._events = post, settings, options, events
        self._asked: dict[str, Letter] = {}
        self._known: set[int] = set()  # nodes that were asked, or have answered
        self._offers: dict[int, dict[int, int]] = {}  # of each node, in the order they joined: clients and samples
        self._looked = float("-inf")

    @property
    def nodes(self) -> int:
        """How many nodes take part."""
        return len({hosted.node for hosted in self.clients.values()})

    def look(self) -> None:
        """Ask new nodes who they are, forget those that are gone, and read the answers that have come."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            here = self._post.nodes()
            self._forget(self._known - here)
            question = {node: {KEY: to_config(self._settings)} for node in sorted(here - self._known)}
            letters = self._post.send("query", question, self._options.wait) if question else {}
            self._known |= set(letters)
            self._asked |= {letter.id: letter for letter in letters.values()}
        for letter, reply in self._post.fetch(self._asked.values()):
            del self._asked[letter.id]
            try:
                if reply.content is None:
                    raise DataError(reply.problem)
                self._join(letter.node, reply.content)
            except DataError as error:
                self._events("refused", node=letter.node, reason=str(error))

    def wait_for(self, ready: Callable[[], bool], wanted: int) -> None:
        """Look, but not for ever, until `ready` says so; `wanted` is how many clients that takes."""
        end, said = time.monotonic() + self._options.wait, -1
        while True:
            self.look()
            if ready() or time.monotonic() >= end:
                return
            if self.nodes != said:
                said = self.nodes
                self._events("waiting", nodes=said, clients=len(self.clients), wanted=wanted)
            pause(self._options.poll, end)

    def forget(self, node: int) -> None:
        """Take a node off that is said to be gone; if it is there at the next look, it is asked again who it is."""
        self._forget({node})
        self._looked = float("-inf")

    def _forget(self, gone: set[int]) -> None:
        self._known -= gone
        self._asked = {key: letter for key, letter in self._asked.items() if letter.node not in gone}
        self._offers = {node: offer for node, offer in self._offers.items() if node not in gone}
        self._settle()

    def _settle(self) -> None:
        """Give each client to the first node that said it hosts it."""
        self.clients = {}
        for node, offer in self._offers.items():
            for client, samples in offer.items():
                self.clients.setdefault(client, Hosted(node, samples))

    def _join(self, node: int, content: RecordDict) -> None:
        """Let a node take part, or raise DataError with the reason why not."""
        answer = read_json(content.config_records.get(KEY, {}), "answer")
        ours = self._settings.version
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
        self._settle()
        self._events("joined", node=node, clients=[c for c in offer if self.clients[c].node == node])

    def _offer(self, answer: Mapping[str, Any]) -> dict[int, int]:
        """Return the clients that a node says it hosts, with their numbers of samples."""
        clients, samples = answer.get("clients"), answer.get("samples")
        if not isinstance(clients, list) or not isinstance(samples, list) or len(clients) != len(samples):
            raise DataError("it does not say which clients it hosts")
        for client, count in zip(clients, samples, strict=True):
            if type(client) is not int or not 0 <= client < self._settings.clients:
                raise DataError(f"it says it hosts a client {str(client)[:40]}, and there are {self._settings.clients}")
            if type(count) is not int or not 0 < count <= MAX_SAMPLES:
                raise DataError(f"it says that client {client} has {str(count)[:40]} samples")
        return dict(zip(clients, samples, strict=True))
