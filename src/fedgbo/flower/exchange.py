"""One attempt at a round: the work goes out, and what comes back before the deadline is checked as it comes."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedgbo.core.errors import DataError
from fedgbo.engines.serial import ClientResult
from fedgbo.flower.check import ClientFailed, absurd, read_answer, read_update
from fedgbo.flower.events import Events
from fedgbo.flower.options import Options
from fedgbo.flower.order import KEY, Order, Settings, to_config
from fedgbo.flower.post import Letter, Post, pause
from fedgbo.flower.roster import Hosted, Roster

PATIENCE = 2  # deadlines for which a reply is looked out for, if only to say that it came too late


@dataclass(frozen=True, eq=False)
class Round:
    """What is asked in an attempt at a round."""

    t: int
    attempt: int
    settings: Settings  # with the round's algorithm
    down: ArrayRecord  # made once, and the same for all nodes
    steps: Mapping[int, int]  # of each client that is asked, those first that the round would rather have
    hosts: Mapping[int, Hosted]  # of each, as the roster has it now: a node may leave while its reply is on the way
    names: tuple[str, ...]  # of the vectors that come up
    like: Tensor  # a vector as each of them must be
    enough: int  # updates: no more are waited for


@dataclass(eq=False)
class Outcome:
    """What an attempt gave."""

    updates: dict[int, ClientResult] = field(default_factory=dict)  # the good ones
    asked: int = 0  # clients whose nodes got the model
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("sending", "waiting", "checking"), 0.0))


@dataclass(frozen=True)
class _Late:
    """Work that was given up; its node is taken to be busy with it until it answers, or its time is over."""

    letter: Letter
    order: Order
    until: float


class Exchange:
    """Carries out attempts, and remembers the replies that are still to come from earlier ones."""

    def __init__(self, post: Post, roster: Roster, options: Options, events: Events) -> None:
        self._post, self._roster, self._options, self._events = post, roster, options, events
        self._late: dict[str, _Late] = {}

    @property
    def busy(self) -> set[int]:
        """The nodes that have not answered an earlier round."""
        return {late.letter.node for late in self._late.values()}

    def look(self) -> None:
        """Throw away what came too late, and see who is there."""
        for letter, reply in self._post.fetch([late.letter for late in self._late.values()]):
            order = self._late.pop(letter.id).order
            if reply.content is not None:
                for client in order.clients:
                    self._events("late", round=order.round + 1, client=client, node=letter.node)
        now = time.monotonic()
        self._post.drop(late.letter for late in self._late.values() if late.until <= now)
        self._late = {key: late for key, late in self._late.items() if late.until > now}
        self._roster.look()

    def carry_out(self, work: Round) -> Outcome:
        """Send, wait, check. Each client that was asked is in the updates then, or was named with the reason."""
        outcome, began = Outcome(), time.perf_counter()
        deadline = time.monotonic() + self._options.deadline
        orders = self._send(work, outcome)
        sent = time.perf_counter()
        waiting = {key: letter for key, (letter, _) in orders.items()}
        while waiting and len(outcome.updates) < work.enough:
            for letter, reply in self._post.fetch(waiting.values()):
                del waiting[letter.id]
                outcome.received_bytes += reply.bytes
                if reply.gone:
                    self._roster.forget(letter.node)
                started = time.perf_counter()
                self._read(work, orders[letter.id][1], letter, reply.content, reply.problem, outcome)
                outcome.seconds["checking"] += time.perf_counter() - started
            if len(outcome.updates) >= work.enough:  # unless one is absurd: then another is waited for
                self._reject_absurd(work, outcome)
            if time.monotonic() >= deadline:
                break
            if waiting and len(outcome.updates) < work.enough:
                self.look()
                pause(self._options.poll, deadline)
        self._give_up(work, [orders[key] for key in waiting], len(outcome.updates) >= work.enough)
        started = time.perf_counter()
        self._reject_absurd(work, outcome)
        self._leave_spare(work, outcome)
        ended = time.perf_counter()
        outcome.seconds["sending"] = sent - began
        outcome.seconds["waiting"] = started - sent - outcome.seconds["checking"]
        outcome.seconds["checking"] += ended - started
        return outcome

    def _send(self, work: Round, outcome: Outcome) -> dict[str, tuple[Letter, Order]]:
        """Send each node one message with the work of all its clients."""
        by_node: dict[int, list[int]] = {}
        for client in work.steps:
            by_node.setdefault(work.hosts[client].node, []).append(client)
        wanted = {
            node: Order(work.t, work.attempt, clients, [work.steps[client] for client in clients])
            for node, clients in by_node.items()
        }
        records = {node: {"down": work.down, KEY: to_config(work.settings, order)} for node, order in wanted.items()}
        letters = self._post.send("train", records, PATIENCE * self._options.deadline, group=str(work.t + 1))
        for node, order in wanted.items():
            if node not in letters:
                self._name("dropped", work, order.clients, node, "Flower could not send it the round's work")
        outcome.asked = sum(len(by_node[node]) for node in letters)
        outcome.sent_bytes = sum(letter.bytes for letter in letters.values())
        return {letter.id: (letter, wanted[node]) for node, letter in letters.items()}

    def _read(
        self, work: Round, order: Order, letter: Letter, content: RecordDict | None, problem: str, outcome: Outcome
    ) -> None:
        """Take the good updates out of a reply."""
        if content is None:
            self._name("dropped", work, order.clients, letter.node, problem)
            return
        try:
            about = read_answer(content, order)
        except DataError as error:
            self._name("rejected", work, order.clients, letter.node, str(error))
            return
        for client in order.clients:
            try:
                outcome.updates[client] = read_update(content, about, client, work.names, work.like)
            except DataError as error:
                self._name("rejected", work, [client], letter.node, str(error))
            except ClientFailed as error:
                self._name("dropped", work, [client], letter.node, f"its training failed: {error}")

    def _reject_absurd(self, work: Round, outcome: Outcome) -> None:
        """Take out what is out of all proportion."""
        for client, reason in absurd(outcome.updates, self._options.max_norm).items():
            del outcome.updates[client]
            self._name("rejected", work, [client], work.hosts[client].node, reason)

    def _leave_spare(self, work: Round, outcome: Outcome) -> None:
        """Take out what the round has no use for."""
        spare = [client for client in work.steps if client in outcome.updates][work.enough :]
        for client in spare:
            del outcome.updates[client]

    def _give_up(self, work: Round, orders: Iterable[tuple[Letter, Order]], enough: bool) -> None:
        """Wait no longer for some nodes."""
        until = time.monotonic() + (PATIENCE - 1) * self._options.deadline
        reason = "enough others were faster" if enough else f"no reply within {self._options.deadline:g} s"
        for letter, order in orders:
            self._late[letter.id] = _Late(letter, order, until)
            self._name("dropped", work, order.clients, letter.node, reason)

    def _name(self, kind: str, work: Round, clients: Iterable[int], node: int, reason: str) -> None:
        for client in clients:
            self._events(kind, round=work.t + 1, client=client, node=node, reason=reason)
