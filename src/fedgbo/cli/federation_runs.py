"""`fedgbo federation` on a running server: its nodes (register, unregister, nodes) and its runs."""

import json
import shlex
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import Hangup, err, exit_code, out, print_json, say
from fedgbo.cli.federation_view import follow_run, printable, quoted, resumable, show_result, stopped_on_error
from fedgbo.core import ConfigError, unknown
from fedgbo.experiments.request import requested_config
from fedgbo.federation.app_folder import OPTIONS, SETTINGS
from fedgbo.federation.control import Control, control
from fedgbo.federation.credentials import read_public_key
from fedgbo.federation.local import overrides
from fedgbo.federation.monitor import EventFile
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.registry import Registry, fingerprint
from fedgbo.runs.folder import RunFolder

RunningServer = Annotated[Path, Argument(metavar="SERVER", help="The server's folder; the server must be running.")]
RunName = Annotated[
    str | None, Argument(metavar="RUN", help="The name of the run's folder. \\[default: the only active run]")
]

STOP_SECONDS = 30.0  # for the server's app to let go of the run's folder
FILLED_IN = ("run-folder", "settings", "resume", "nodes", "started-by", "started-at")  # by the commands
USER_OPTIONS = {key: OPTIONS[key] for key in OPTIONS if key not in FILLED_IN}

FederationOptions = Annotated[
    list[str] | None,
    Option(
        "--option", "-c", metavar="KEY=VALUE", help=f"Options of the federation: {', '.join(USER_OPTIONS)}; repeatable."
    ),
]
Check = Annotated[bool, Option(help="Also carry out the run without a federation, and compare the results.")]


def register(
    folder: RunningServer,
    key: Annotated[Path, Argument(metavar="KEY.pub", help="The node's public key; the file name is the node's name.")],
    clients: Annotated[str, Option(help="The numbers of the clients that the node hosts, e.g. 0 or 0-4 or 0,3.")],
) -> None:
    """Register a node by its public key for some clients, or change its clients. Run this on the server."""
    public_key, server = read_public_key(key), ServerFolder(folder.absolute())
    with control(server) as to_server:
        new = to_server.register(Registry(server.path), public_key, key.stem, clients)
    out.print(f"{key.stem}: {'registered' if new else 'was already registered, now'} for clients {clients}")
    err.print(f"fingerprint of its key, to compare by telephone: {fingerprint(public_key)}")


def unregister(
    folder: RunningServer, name: Annotated[str, Argument(metavar="NAME", help="The node's name, as `nodes` shows it.")]
) -> None:
    """Remove a node. Run this on the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        to_server.unregister(Registry(server.path), name)
    out.print(f"{name}: removed; it is refused from now on")


def nodes(folder: RunningServer, as_json: opt.Json = False) -> None:
    """List the registered nodes: their clients, whether they are connected, and their keys. Run this on the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        connections = to_server.connections()
    rows = []
    for node in Registry(server.path).nodes().values():
        seen = connections.get(node.id)
        state = "unknown to Flower" if seen is None else "connected" if seen.online else "not connected"
        since = (seen.changed if seen is not None else "")[:19]
        about = {"name": node.name, "clients": node.clients, "state": state}
        rows.append({**about, "since": since, "key": node.fingerprint})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out.print(_line(list(row.values()), (20, 10, 14, 19, 32)))
    if not rows:
        err.print("no node is registered")


def run(
    server: RunningServer,
    app: Annotated[Path, Argument(metavar="APP", help="The app's folder, from `fedgbo federation new`.")],
    to: Annotated[Path | None, opt.Out(help="The run's folder. \\[default: runs/<name>]")] = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    option: FederationOptions = None,
    check: Check = False,
    detach: Annotated[bool, Option("--detach", help="Start the run and return; see `status` and `attach`.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Start or resume a run on the federation, and follow it. Run this on the server."""
    if resume is not None and to is not None:
        raise ConfigError("give --out for a new run or --resume for an existing run, not both")
    settings = app / SETTINGS
    requested_config(settings)  # an error in it is shown before anything starts
    folder = (resume or to or opt.new_folder("federation", app.name)).absolute()
    if resume is not None:
        RunFolder.open(folder)
    elif (folder / "run.json").exists():
        raise ConfigError(f"{folder} already holds a run; resume it with --resume {folder}")
    place = ServerFolder(server.absolute())

    def again() -> str:
        return _run_command(place, app.absolute(), folder, options_of(option))

    with resumable(again, lambda: [f"logs: {place.app_log}, {place.log}"]), control(place) as to_server:
        if not Registry(place.path).nodes():
            raise ConfigError("no node is registered; register one: fedgbo federation register SERVER KEY.pub")
        events = EventFile(folder, skip=True)
        started = to_server.start(app.absolute(), overrides(place, settings, folder, options_of(option)))
        if not quiet:
            err.print(f"the app's hash, which nodes are asked to allow: {started.app_sha256}")
        attach_it = f"follow it with: fedgbo federation attach {quoted(place.path)} {quoted(Path(folder.name))}"
        if detach:
            out.print(printable(folder))
            err.print(attach_it)
            return
        try:
            with stopped_on_error(to_server, started.number):
                follow_run(to_server, started.number, events, quiet)
        except Hangup as gone:
            say(f"the terminal was closed; the run continues; {attach_it}")
            sys.exit(exit_code(gone))
    show_result(folder, check)


def status(folder: RunningServer, as_json: opt.Json = False) -> None:
    """List the server's runs: state, rounds, who started them, and the hashes of their apps. Run this on the server."""
    server = ServerFolder(folder.absolute())
    rows = []
    with control(server) as to_server:
        runs = to_server.runs()
    for entry in server.audited("start"):
        about = runs.get(entry["run"])
        run_folder = Path(entry["options"]["run-folder"])
        state = "gone" if about is None else f"{about.stage} {about.outcome}".strip()
        done = sum(event.kind == "done_round" for event in EventFile(run_folder).new())
        row = {"run": run_folder.name, "state": state, "rounds": done, "started": entry["time"], "by": entry["user"]}
        rows.append({**row, "app": entry["app_sha256"], "folder": str(run_folder)})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        texts = [row["run"], row["state"], f"{row['rounds']} rounds", row["started"][:19], row["by"], row["app"][:12]]
        out.print(_line(texts, (20, 20, 12, 19, 10, 12)))
    if not rows:
        err.print("no run has been started yet")


def stop_run(folder: RunningServer, name: RunName = None) -> None:
    """Stop a run; it can be resumed. Run this on the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        entry = _chosen(to_server, name)
        to_server.stop(entry["run"])
    run_folder, app, options = Path(entry["options"]["run-folder"]), Path(entry["app"]), entry["options"]
    end = time.monotonic() + STOP_SECONDS
    while RunFolder(run_folder).in_use() and time.monotonic() < end:
        time.sleep(0.1)
    out.print(f"{printable(run_folder.name)}: stopped")
    own = {key: value for key, value in options.items() if key in USER_OPTIONS}
    err.print(f"resume with: {printable(_run_command(server, app, run_folder, own))}")


def attach(folder: RunningServer, name: RunName = None) -> None:
    """Follow a run that was started earlier, from its first event; Ctrl-C leaves it running. Run this on the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        entry = _chosen(to_server, name, ended=True)
        run_folder = Path(entry["options"]["run-folder"])
        try:
            follow_run(to_server, entry["run"], EventFile(run_folder))
        except KeyboardInterrupt:
            err.print("detached; the run continues")
            return
    show_result(run_folder, check=False)


def _line(texts: Sequence[Any], widths: Sequence[int]) -> str:
    return "  ".join(f"{printable(text):<{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()


def _run_command(server: ServerFolder, app: Path, folder: Path, options: Mapping[str, Any]) -> str:
    """Return the command that starts a run in this folder, or resumes it if it was begun."""
    words = ["fedgbo", "federation", "run", str(server.path), str(app)]
    words += ["--resume" if (folder / "run.json").exists() else "--out", str(folder)]
    return shlex.join([*words, *(word for key in options for word in ("-c", f"{key}={json.dumps(options[key])}"))])


def _chosen(to_server: Control, name: str | None, ended: bool = False) -> dict[str, Any]:
    """Return the audit's entry of a run: the one named, else the one that goes on or, with `ended`, the last one."""
    runs, entries = to_server.runs(), to_server.server.audited("start")
    named = {Path(entry["options"]["run-folder"]).name: entry for entry in entries if entry["run"] in runs}
    going_on = {key: entry for key, entry in named.items() if runs[entry["run"]].stage != "finished"}
    choice = named if ended else going_on
    if name is None and ended and named and not going_on:
        return entries[-1]
    if name is None and len(going_on) == 1:
        return next(iter(going_on.values()))
    if name in choice:
        return choice[name]
    what = (
        f"{len(going_on)} runs are active" if name is None else f"no run {name} {'is known' if ended else 'is active'}"
    )
    raise ConfigError(f"{what}; name one (running: {', '.join(going_on) or 'none'})")


def options_of(given: list[str] | None) -> dict[str, Any]:
    """Return the federation's options from KEY=VALUE texts, with names and types checked.

    >>> options_of(["deadline=30", "weighted=true"])
    {'deadline': 30, 'weighted': True}
    """
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    found: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' must be key=value, e.g. deadline=60")
        if name not in USER_OPTIONS:
            raise ConfigError(unknown("option", name, USER_OPTIONS))
        kind = type(USER_OPTIONS[name])
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = None
        if type(found[name]) not in ((int, float) if kind is float else (kind,)):
            raise ConfigError(f"{name} must be {kinds[kind]}, not '{value}'")
    return found  # int and float stay distinct: a quorum of 1 is one client, 1.0 is all of them
