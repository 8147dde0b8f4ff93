"""How a federation's run is followed: its events in sentences, how to resume it, its score and digests."""

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from fedgbo.cli.console import Hangup, err, exit_code, out, print_json, rounds_done, say
from fedgbo.core import ConfigError, DataError, FederationError
from fedgbo.federation.control import Control
from fedgbo.federation.local import Running
from fedgbo.federation.monitor import Event, EventFile, digest_of, follow, simulated
from fedgbo.flower.registry import in_words
from fedgbo.reports.table import quantity
from fedgbo.runs.bar import score, score_of
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import ACCURACY

LINES = {
    "waiting": "waiting for {awaited}: {nodes} so far, with {clients} of {wanted} clients",
    "joined": "{node} hosts {hosted}",
    "refused": "[yellow]{node} is refused:[/] {reason}",
    "duplicate": "[yellow]client {client} is hosted twice;[/] the one on {node} is not used",
    "round": "round {round}{again}: {hosted}",
    "rejected": "[yellow]client {client} ({node}) rejected[/] in round {round}: {reason}",
    "dropped": "[yellow]client {client} ({node}) dropped[/] in round {round}: {reason}",
    "lost": "[yellow]client {client} ({node})[/] in round {round}: {reason}",
    "late": "[yellow]client {client}: a reply to round {round} came too late[/] and is not used",
    "abandoned": "[yellow]round {round} is abandoned:[/] {valid} usable updates, {needed} needed; model unchanged",
    "stopped": "[bold red]stopped:[/] {reason}",
}


def sentence(event: Event) -> str | None:
    """Return the lines to show for an event; None for kinds that are not shown."""
    if event.kind == "done_round":
        return _round_done(event)
    if event.kind == "nodes":
        return _nodes(event)
    if event.kind not in LINES:
        return None
    again = f", attempt {event['attempt'] + 1}" if event["attempt"] else ""
    hosted = in_words(event["clients"] or []) if event.kind in ("joined", "round") else ""
    words = {name: printable(event[name]) for name in ("node", "reason")}
    words |= {"again": again, "hosted": hosted, "awaited": printable(", ".join(event["missing"] or ["nodes"]))}
    return LINES[event.kind].format_map(defaultdict(str, {**event.content, **words}))


def _nodes(event: Event) -> str:
    """Return who takes part, and on further lines who does not, and why."""
    joined = [f"{printable(name)} ({in_words(numbers)})" for name, numbers in sorted((event["joined"] or {}).items())]
    lines = [f"nodes that take part: {', '.join(joined) or 'none'}"]
    lines += [f"[yellow]{name} is missing[/]" for name in map(printable, event["missing"] or [])]
    refused = (event["refused"] or {}).items()
    lines += [f"[yellow]{printable(name)} is refused:[/] {printable(reason)}" for name, reason in refused]
    twice = (event["duplicates"] or {}).items()
    lines += [f"[yellow]client {client} is hosted twice:[/] by {', '.join(names)}" for client, names in twice]
    if event["unhosted"]:
        lines.append(f"[yellow]without a node:[/] {in_words(event['unhosted'])}")
    return "\n".join(lines)


def _round_done(event: Event) -> str:
    seconds: Mapping[str, float] = event["seconds"] or {}
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
    where = ", ".join(f"{name} {took:.1f} s" for name, took in longest if took >= 0.05)
    parts = [
        f"round {event['round']} of {event['of']} done",
        printable(score(event["accuracy"], event["loss"], str(event["metric"] or ACCURACY))),
        f"{len(event['took_part'] or [])} clients took part",
        f"{_bytes(event['sent_bytes'])} sent and {_bytes(event['received_bytes'])} received "
        f"(by the ledger {_bytes(event['ledger_down'])} and {_bytes(event['ledger_up'])})",
        f"{sum(seconds.values()):.1f} s" + (f" ({where})" if where else ""),
    ]
    return ", ".join(part for part in parts if part)


def printable(text: Any) -> str:
    """Return untrusted text without markup, colours or control characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return shown.replace("[", r"\[")


def quoted(path: Path) -> str:
    """Return a path for a command line."""
    return printable(shlex.quote(str(path)))


def _bytes(count: int | None) -> str:
    return "?" if count is None else quantity(count, "B", 1024)


def follow_run(
    to_server: Control, number: int, events: EventFile, quiet: bool = False, local: Running | None = None
) -> None:
    """Show the run's events until it ends; raise if it did not complete. `local` has the processes to watch."""

    def show(event: Event) -> None:
        if not quiet and (line := sentence(event)) is not None:
            err.print(line)

    def check() -> None:
        if local is not None:
            for process in local.lost():
                err.print(f"[yellow]{process.name} has exited;[/] {printable(process.last_words())}")

    ending = follow(to_server, number, events, show, check)
    if not ending.completed:
        raise FederationError(f"the run did not finish: {ending.reason}")


@contextmanager
def stopped_on_error(to_server: Control, number: int) -> Iterator[None]:
    """Stop the run after Ctrl-C, SIGTERM and errors of the federation; it goes on if only the terminal is gone."""
    try:
        yield
    except Hangup:
        raise
    except (KeyboardInterrupt, FederationError):
        with suppress(FederationError):
            to_server.stop(number)
        raise


@contextmanager
def resumable(again: Callable[[], str], logs: Callable[[], list[str]]) -> Iterator[None]:
    """After a failure or Ctrl-C, print the command that resumes the run; after a failure also where the logs are."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        say(f"stopped; resume with: {printable(again())}")
        sys.exit(exit_code(stopped))
    except FederationError as error:
        told = [] if "resume it with" in str(error) else [f"resume with: {again()}"]
        raise FederationError("\n".join([str(error), *logs(), *told])) from error


def show_result(run: Path, check: bool) -> None:
    """Print a run's score, folder and digest; with `check` also the digest of `fedgbo run`."""
    if not (run / "run.json").exists():
        out.print(f"completed; {printable(run)} is on the server's file system, which this machine cannot read")
        return
    last = RunFolder.open(run).records()[-1]
    out.print(f"{printable(score_of(last))} after {rounds_done(last)}\n{printable(run)}")
    show_digests(run, check)


def show_digests(run: Path, simulate: bool, as_json: bool = False) -> None:
    """Print a run's digest and, with `simulate`, that of `fedgbo run`; exit with code 1 if they differ."""
    digests = {"federation": digest_of(run)}
    if simulate:
        try:
            digests["fedgbo run"] = simulated(run)
        except (ConfigError, DataError) as error:
            told = f"the run is finished, with the digest {digests['federation']}"
            raise FederationError(f"{told}, but cannot be repeated here to check it: {error}") from error
    same = len(set(digests.values())) == 1
    if as_json:
        print_json({**digests, "same": same})
    else:
        width = max(map(len, digests))
        out.print(*(f"{name:<{width}}  {value}" for name, value in digests.items()), sep="\n")
        if simulate:
            out.print("the same, bit for bit" if same else "[bold red]not the same[/]")
    if not same:
        raise typer.Exit(1)
