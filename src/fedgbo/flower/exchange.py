"""One attempt at a round: orders go to the nodes, and replies that arrive before the deadline are checked."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedgbo.core import DataError, State
from fedgbo.flower.messenger import Events, Messenger, Reply, SentMessage, pause
from fedgbo.flower.options import Options
from fedgbo.flower.roster import Host, Roster
from fedgbo.flower.wire import ClientFailed, NormBounds, Order, Settings, Update, read_answer, read_update, to_content

PATIENCE = 2  # deadlines for which a reply is expected; one that comes after the first is only reported as late


@dataclass(frozen=True, eq=False)
class Attempt:
    """The input of one attempt at a round."""

    t: int
    number: int  # from 0
    settings: Settings  # with the round's algorithm
    down: ArrayRecord  # made once, the same for all nodes
    steps: Mapping[int, int]  # local steps of each chosen client, in order of preference
    since: Mapping[int, int]  # round of each chosen client's last update that counted; -1: none
    hosts: Mapping[int, Host]  # of each chosen client; a copy, because a node may leave the roster meanwhile
    names: tuple[str, ...] | None  # of the uploaded vectors; None: those that most clients upload
    like: State  # whose model and buffers have the shapes and types of the uploaded vectors
    enough: int  # updates; the attempt ends when it has them


@dataclass(eq=False)
class Outcome:
    """The result of an attempt."""

    updates: dict[int, Update] = field(default_factory=dict)  # the valid ones
    asked: int = 0  # clients whose nodes were sent the model
    traffic: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("sent_bytes", "received_bytes"), 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("sending", "waiting", "checking"), 0.0))


class Exchange:
    """Carries out attempts, and keeps track of overdue replies to earlier ones."""

    def __init__(self, messenger: Messenger, roster: Roster, options: Options, events: Events) -> None:
        self._messenger, self._roster, self._options, self._events = messenger, roster, options, events
        self._bounds = NormBounds(options.max_norm, options.max_update)
        # Orders past their deadline; a node counts as busy until it replies or the time in the last place has passed
        self._overdue: dict[str, tuple[SentMessage, Order, float]] = {}

    def look(self) -> set[int]:
        """Discard late replies and update the roster; return the clients whose nodes are connected and not busy."""
        for message, reply in self._messenger.fetch([message for message, _, _ in self._overdue.values()]):
            _, order, _ = self._overdue.pop(message.id)
            if reply.content is not None:
                for client in order.clients:
                    self._events("late", round=order.round + 1, client=client, node=self._roster.name(message.node))
        now = time.monotonic()
        self._messenger.drop(message for message, _, until in self._overdue.values() if until <= now)
        self._overdue = {key: overdue for key, overdue in self._overdue.items() if overdue[2] > now}
        self._roster.look()
        busy = {message.node for message, _, _ in self._overdue.values()}
        return {client for client, host in self._roster.clients.items() if host.node not in busy}

    def carry_out(self, attempt: Attempt) -> Outcome:
        """Send, wait, check. Each chosen client ends up in the updates or in an event with the reason."""
        outcome, began = Outcome(), time.perf_counter()
        deadline = time.monotonic() + self._options.deadline
        orders = self._send(attempt, outcome)
        sent = time.perf_counter()
        waiting = {key: message for key, (message, _) in orders.items()}
        while waiting and len(outcome.updates) < attempt.enough:
            for message, reply in self._messenger.fetch(waiting.values()):
                del waiting[message.id]
                outcome.traffic["received_bytes"] += reply.bytes
                if reply.gone:
                    self._roster.forget({message.node})
                started = time.perf_counter()
                self._read(attempt, orders[message.id][1], message.node, reply, outcome)
                outcome.seconds["checking"] += time.perf_counter() - started
            if len(outcome.updates) >= attempt.enough:  # a rejected update is replaced by waiting for another
                self._reject_outliers(attempt, outcome)
            if time.monotonic() >= deadline:
                break
            if waiting and len(outcome.updates) < attempt.enough:
                self.look()
                pause(self._options.poll, deadline)
        self._give_up(attempt, [orders[key] for key in waiting], len(outcome.updates) >= attempt.enough)
        started = time.perf_counter()
        self._reject_outliers(attempt, outcome)
        for spare in [client for client in attempt.steps if client in outcome.updates][attempt.enough :]:
            del outcome.updates[spare]
        self._bounds.accept(outcome.updates)
        outcome.seconds["sending"] = sent - began
        outcome.seconds["waiting"] = started - sent - outcome.seconds["checking"]
        outcome.seconds["checking"] += time.perf_counter() - started
        return outcome

    def _send(self, attempt: Attempt, outcome: Outcome) -> dict[str, tuple[SentMessage, Order]]:
        """Send each node one message with the order for all its clients."""
        orders: dict[int, Order] = {}
        for client, steps in attempt.steps.items():
            order = orders.setdefault(attempt.hosts[client].node, Order(attempt.t, attempt.number, [], [], []))
            order.clients.append(client)
            order.steps.append(steps)
            order.since.append(attempt.since[client])
        contents = {node: to_content(attempt.settings, order, attempt.down) for node, order in orders.items()}
        sent = self._messenger.send("train", contents, PATIENCE * self._options.deadline, group=str(attempt.t + 1))
        for node, order in orders.items():
            if node not in sent:
                self._report("dropped", attempt, order.clients, node, "Flower could not send it the round's work")
        outcome.asked = sum(len(orders[node].clients) for node in sent)
        outcome.traffic["sent_bytes"] = sum(message.bytes for message in sent.values())
        return {message.id: (message, orders[node]) for node, message in sent.items()}

    def _read(self, attempt: Attempt, order: Order, node: int, reply: Reply, outcome: Outcome) -> None:
        """Add the valid updates in a reply to the outcome."""
        if reply.content is None:
            self._report("dropped", attempt, order.clients, node, reply.problem)
            return
        try:
            about = read_answer(reply.content, order)
        except DataError as error:
            self._report("rejected", attempt, order.clients, node, str(error))
            return
        for client in order.clients:
            try:
                outcome.updates[client] = read_update(reply.content, about, client, attempt.names, attempt.like)
            except DataError as error:
                self._report("rejected", attempt, [client], node, str(error))
            except ClientFailed as error:
                self._report("dropped", attempt, [client], node, f"its training failed: {error}")

    def _reject_outliers(self, attempt: Attempt, outcome: Outcome) -> None:
        for client, reason in self._bounds.outliers(outcome.updates, attempt.like.params).items():
            del outcome.updates[client]
            self._report("rejected", attempt, [client], attempt.hosts[client].node, reason)

    def _give_up(self, attempt: Attempt, orders: Iterable[tuple[SentMessage, Order]], enough: bool) -> None:
        """Stop waiting for some nodes, and remember them as busy."""
        until = time.monotonic() + (PATIENCE - 1) * self._options.deadline
        reason = "enough others were faster" if enough else f"no reply within {self._options.deadline:g} s"
        for message, order in orders:
            self._overdue[message.id] = (message, order, until)
            self._report("dropped", attempt, order.clients, message.node, reason)

    def _report(self, kind: str, attempt: Attempt, clients: Iterable[int], node: int, reason: str) -> None:
        for client in clients:
            self._events(kind, round=attempt.t + 1, client=client, node=self._roster.name(node), reason=reason)
