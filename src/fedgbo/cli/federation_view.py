"""What happens in a federation, in sentences: from the events that the server's app writes down."""

from collections.abc import Mapping
from typing import Any

from fedgbo.cli.console import quantity
from fedgbo.federation.monitor import Event

KINDS = (
    "waiting", "joined", "refused", "duplicate", "round", "rejected", "dropped", "late", "abandoned", "done_round",
    "stopped",
)  # fmt: skip
MOST_LISTED = 12  # clients in a sentence


class EventView:
    """Turns events into lines; knows the nodes' names and how many rounds there will be."""

    def __init__(self, rounds: int, names: Mapping[int, str] | None = None) -> None:
        self.rounds = rounds
        self.names = names or {}

    def line(self, event: Event) -> str | None:
        """Return what to say about an event; None if nothing."""
        return str(getattr(self, f"_{event.kind}")(event)) if event.kind in KINDS else None

    def _waiting(self, event: Event) -> str:
        return f"waiting for nodes: {event['nodes']} so far, with {event['clients']} of {event['wanted']} clients"

    def _joined(self, event: Event) -> str:
        return f"{self._node(event)} hosts {clients(event['clients'])}"

    def _refused(self, event: Event) -> str:
        return f"[yellow]{self._node(event)} is refused:[/] {plain(event['reason'])}"

    def _duplicate(self, event: Event) -> str:
        return f"[yellow]client {event['client']} is hosted twice;[/] the one of {self._node(event)} does not count"

    def _round(self, event: Event) -> str:
        again = f", attempt {event['attempt'] + 1}" if event["attempt"] else ""
        return f"round {self._number(event)}{again}: {clients(event['clients'])}"

    def _rejected(self, event: Event) -> str:
        return self._lost(event, "rejected")

    def _dropped(self, event: Event) -> str:
        return self._lost(event, "dropped")

    def _late(self, event: Event) -> str:
        return (
            f"[yellow]client {event['client']}: a reply to round {self._number(event)} came too late[/] and is not used"
        )

    def _abandoned(self, event: Event) -> str:
        return (
            f"[yellow]round {self._number(event)} is abandoned:[/] {event['valid']} usable updates, {event['needed']} "
            "needed; the model stays as it was"
        )

    def _done_round(self, event: Event) -> str:
        seconds: Mapping[str, float] = event["seconds"] or {}
        longest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
        where = ", ".join(f"{name} {took:.1f} s" for name, took in longest if took >= 0.05)
        parts = [
            f"round {self._number(event)} of {self.rounds} done",
            score(event["accuracy"], event["loss"]),
            f"{len(event['took_part'] or [])} clients took part",
            f"{_bytes(event['sent_bytes'])} sent and {_bytes(event['received_bytes'])} received "
            f"(by the ledger {_bytes(event['ledger_down'])} and {_bytes(event['ledger_up'])})",
            f"{sum(seconds.values()):.1f} s ({where})" if where else f"{sum(seconds.values()):.1f} s",
        ]
        return ", ".join(part for part in parts if part)

    def _stopped(self, event: Event) -> str:
        return f"[bold red]stopped:[/] {plain(event['reason'])}"

    def _lost(self, event: Event, how: str) -> str:
        return (
            f"[yellow]client {event['client']} ({self._node(event)}) {how}[/] in round {self._number(event)}: "
            f"{plain(event['reason'])}"
        )

    def _node(self, event: Event) -> str:
        return self.names.get(event["node"], f"node {event['node']}")

    def _number(self, event: Event) -> int:
        return int(event["round"])


def clients(numbers: list[int] | None) -> str:
    """Return a list of clients in words.

    >>> clients([3]), clients([0, 2]), clients(list(range(20)))
    ('client 3', 'clients 0, 2', '20 clients: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...')
    """
    known = numbers or []
    if len(known) == 1:
        return f"client {known[0]}"
    listed = ", ".join(map(str, known[:MOST_LISTED]))
    if len(known) <= MOST_LISTED:
        return f"clients {listed}" if known else "no clients"
    return f"{len(known)} clients: {listed}, ..."


def score(accuracy: float | None, loss: float | None) -> str:
    """Return the test score, or nothing where there was none."""
    if accuracy is not None:
        return f"accuracy {accuracy:.1%}"
    return "" if loss is None else f"test loss {loss:.4g}"


def plain(text: Any) -> str:
    """Return text from outside with nothing in it that the console would take for markup or colours."""
    shown = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return shown.replace("[", r"\[")


def _bytes(count: int | None) -> str:
    return "?" if count is None else quantity(count, "B", 1024)
