"""One attempt at a round: orders go to the nodes, and replies that arrive before the deadline are checked."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedgbo.core import DataError, State
from fedgbo.flower.messenger import Events, Messenger, Reply, SentMessage, pause
from fedgbo.flower.options import Options
from fedgbo.flower.roster import Host, Roster
from fedgbo.flower.wire import (
    ClientFailed,
    NormBounds,
    Order,
    Settings,
    Update,
    most_bytes,
    read_answer,
    read_update,
    to_content,
)

PATIENCE = 2  # deadlines for which a reply is expected; one that comes after the first is only reported as late
ASK_SECONDS = 10.0  # without a reply, after which a node is asked whether it lost its order
MOST_RESENDS = 3  # of a node's order in an attempt


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
        self._questions: dict[str, tuple[SentMessage, str]] = {}  # to silent nodes, with the ids of their orders
        self._idle: set[str] = set()  # orders whose nodes have answered a question since
        self._bounds = NormBounds(options.max_norm, options.max_update)
        # Orders past their deadline; a node counts as busy until it replies or the time in the last place has passed
        self._overdue: dict[str, tuple[SentMessage, Order, float]] = {}

    def look(self) -> set[int]:
        """Discard late replies and update the roster; return the clients whose nodes are connected and not busy."""
        idle = self._ask([message for message, _, _ in self._overdue.values()])
        for message, reply in self._messenger.fetch([message for message, _, _ in self._overdue.values()]):
            _, order, _ = self._overdue.pop(message.id)
            if reply.content is not None:
                for client in order.clients:
                    self._events("late", round=order.round + 1, client=client, node=self._roster.name(message.node))
        now = time.monotonic()
        self._messenger.drop(message for message, _, until in self._overdue.values() if until <= now)
        self._overdue = {key: late for key, late in self._overdue.items() if late[2] > now and key not in idle}
        self._roster.look()
        busy = {message.node for message, _, _ in self._overdue.values()}
        return {client for client, host in self._roster.clients.items() if host.node not in busy}

    def carry_out(self, attempt: Attempt) -> Outcome:
        """Send, wait, check. Each chosen client ends up in the updates or in an event with the reason."""
        outcome, began = Outcome(), time.perf_counter()
        deadline = time.monotonic() + self._options.deadline
        self._idle &= self._overdue.keys()
        waiting = self._send(attempt, _orders(attempt), outcome)
        outcome.asked = sum(len(order.clients) for _, order in waiting.values())
        sent, resends, lost = time.perf_counter(), Counter[int](), set[str]()
        while waiting and len(outcome.updates) < attempt.enough:
            messages = [message for message, _ in waiting.values()]
            idle = self._ask(messages)  # before the replies are fetched: an idle node's reply is here now, or is lost
            for message, reply in self._messenger.fetch(messages):
                _, order = waiting.pop(message.id)
                outcome.traffic["received_bytes"] += reply.bytes
                if reply.gone:
                    self._roster.forget({message.node})
                started = time.perf_counter()
                self._read(attempt, order, message.node, reply, outcome)
                outcome.seconds["checking"] += time.perf_counter() - started
            if len(outcome.updates) >= attempt.enough:  # a rejected update is replaced by waiting for another
                self._reject_outliers(attempt, outcome)
            if time.monotonic() >= deadline:
                break
            for message, order in [waiting[key] for key in idle & waiting.keys()]:
                resends[message.node] += 1
                if resends[message.node] > MOST_RESENDS:
                    lost.add(message.id)
                    continue
                self._report("lost", attempt, order.clients, message.node, "its work was lost; it is sent again")
                del waiting[message.id]
                waiting |= self._send(attempt, {message.node: order}, outcome)
            if waiting and len(outcome.updates) < attempt.enough:
                self.look()
                pause(self._options.poll, len(waiting), deadline)
        self._give_up(attempt, waiting.values(), len(outcome.updates) >= attempt.enough)
        self._overdue = {key: late for key, late in self._overdue.items() if key not in lost}  # their nodes are free
        started = time.perf_counter()
        self._reject_outliers(attempt, outcome)
        for spare in [client for client in attempt.steps if client in outcome.updates][attempt.enough :]:
            del outcome.updates[spare]
        self._bounds.accept(outcome.updates)
        outcome.seconds["sending"] = sent - began
        outcome.seconds["waiting"] = started - sent - outcome.seconds["checking"]
        outcome.seconds["checking"] += time.perf_counter() - started
        return outcome

    def _send(
        self, attempt: Attempt, orders: Mapping[int, Order], outcome: Outcome
    ) -> dict[str, tuple[SentMessage, Order]]:
        """Send nodes their orders; return what was sent, by the messages' ids."""
        contents = {node: to_content(attempt.settings, order, attempt.down) for node, order in orders.items()}
        room, seconds = most_bytes(attempt.names, attempt.like), PATIENCE * self._options.deadline
        rooms = {node: len(order.clients) * room for node, order in orders.items()}
        sent = self._messenger.send("train", contents, seconds, group=str(attempt.t + 1), rooms=rooms)
        for node, order in orders.items():
            if node not in sent:
                self._report("dropped", attempt, order.clients, node, "Flower could not send it the round's work")
        outcome.traffic["sent_bytes"] += sum(message.bytes for message in sent.values())
        return {message.id: (message, orders[node]) for node, message in sent.items()}

    def _ask(self, orders: Iterable[SentMessage]) -> set[str]:
        """Ask nodes that have not replied for long; return the ids of the orders that their nodes do not have any more.

        A node takes one message after another. If it answers a question that was sent after an order, and there is no
        reply to the order, then one of them is lost, for example with a process that was killed.
        """
        silent, now = {order.id: order for order in orders if not self._messenger.pulling(order)}, time.monotonic()
        for question, reply in self._messenger.fetch([question for question, _ in self._questions.values()]):
            _, key = self._questions.pop(question.id)  # answered or expired
            self._idle |= set() if reply.content is None else {key}
        idle, asked = self._idle & silent.keys(), {key for _, key in self._questions.values()}
        self._idle -= idle
        due = {
            order.node: key
            for key, order in silent.items()
            if key not in idle | asked and now - order.at >= ASK_SECONDS
        }
        if due:
            contents = {node: to_content(self._roster.settings) for node in due}
            sent = self._messenger.send("query", contents, 2 * ASK_SECONDS)
            self._questions |= {question.id: (question, due[node]) for node, question in sent.items()}
        return idle

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


def _orders(attempt: Attempt) -> dict[int, Order]:
    """Return the order of each node, for all its clients."""
    orders: dict[int, Order] = {}
    for client, steps in attempt.steps.items():
        order = orders.setdefault(attempt.hosts[client].node, Order(attempt.t, attempt.number, [], [], []))
        order.clients.append(client)
        order.steps.append(steps)
        order.since.append(attempt.since[client])
    return orders
