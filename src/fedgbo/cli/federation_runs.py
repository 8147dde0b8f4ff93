"""`fedgbo federation` on a running server: its nodes (register, unregister, nodes) and its runs."""

import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json
from fedgbo.cli.federation_view import EventView, follow_run, printable, resumable, show_result
from fedgbo.core import ConfigError, unknown
from fedgbo.experiments.request import requested_config
from fedgbo.federation.app_folder import OPTIONS, SETTINGS
from fedgbo.federation.control import Control, control
from fedgbo.federation.credentials import read_public_key
from fedgbo.federation.local import overrides
from fedgbo.federation.monitor import EventFile, attended
from fedgbo.federation.registry import Registry, fingerprint
from fedgbo.federation.superlink import ServerFolder
from fedgbo.runs.folder import RunFolder

RunningServer = Annotated[Path, Argument(metavar="SERVER", help="The server's folder; its server must run.")]
RunName = Annotated[
    str | None, Argument(metavar="RUN", help="The name of the run's folder. \\[default: the only one that runs]")
]

FILLED_IN = ("run-folder", "settings", "resume", "nodes", "started-by", "started-at")  # by the commands
USER_OPTIONS = {key: OPTIONS[key] for key in OPTIONS if key not in FILLED_IN}

FederationOptions = Annotated[
    list[str] | None,
    Option("--option", "-c", metavar="KEY=VALUE", help=f"Of the federation: {', '.join(USER_OPTIONS)}; repeatable."),
]
Check = Annotated[bool, Option(help="Do the run without a federation too, and compare the results.")]


def register(
    folder: RunningServer,
    key: Annotated[Path, Argument(metavar="KEY.pub", help="The node's public key; its name is the node's.")],
    clients: Annotated[str, Option(help="The numbers of the clients that the node hosts, e.g. 0 or 0-4 or 0,3.")],
) -> None:
    """Admit a node by its public key, for some clients; or change the clients of one. On the server."""
    public_key, server = read_public_key(key), ServerFolder(folder.absolute())
    with control(server) as to_server:
        new = to_server.register(Registry(server.path), public_key, key.stem, clients)
    out.print(f"{key.stem}: {'registered' if new else 'was registered before, now'} for clients {clients}")
    err.print(f"fingerprint of its key, to compare by telephone: {fingerprint(public_key)}")


def unregister(
    folder: RunningServer, name: Annotated[str, Argument(metavar="NAME", help="The node's name, as `nodes` shows it.")]
) -> None:
    """Remove a node. On the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        to_server.unregister(Registry(server.path), name)
    out.print(f"{name}: removed; it is refused from now on")


def nodes(folder: RunningServer, as_json: opt.Json = False) -> None:
    """List the registered nodes: their clients, whether they are connected, and their keys. On the server."""
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
    detach: Annotated[bool, Option("--detach", help="Start it and return; see `status` and `attach`.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Start a run on the federation, or resume one, and follow it. On the server's machine."""
    if resume is not None and to is not None:
        raise ConfigError("give --out for a new run or --resume for one that was begun, not both")
    settings = app / SETTINGS
    config, _ = requested_config(settings)
    folder = (resume or to or opt.new_folder("federation", app.name)).absolute()
    if resume is not None:
        RunFolder.open(folder)
    elif (folder / "run.json").exists():
        raise ConfigError(f"{folder} already holds a run; resume it with --resume {folder}")
    place = ServerFolder(server.absolute())

    def again() -> str:
        words = ["fedgbo", "federation", "run", str(place.path), str(app.absolute())]
        words += ["--resume" if (folder / "run.json").exists() else "--out", str(folder)]
        return shlex.join([*words, *(word for text in option or [] for word in ("-c", text))])

    logs: list[str] = []
    with resumable(again, lambda: logs), control(place) as to_server:
        if not Registry(place.path).nodes():
            raise ConfigError("no node is registered; register one: fedgbo federation register SERVER KEY.pub")
        events = EventFile(folder, skip=True)
        started = to_server.start(app.absolute(), overrides(place, settings, folder, options_of(option)))
        log = place.path / f"run-{started.number}.log"
        logs.append(f"log: {log}")
        if not quiet:
            err.print(f"the app's hash, which nodes are asked to allow: {started.app_sha256}")
        if detach:
            out.print(printable(folder))
            return
        view = None if quiet else EventView(config.rounds, Registry(place.path).names())
        with attended(to_server, started.number, log):
            follow_run(to_server, started.number, events, view)
    show_result(folder, check)


def status(folder: RunningServer, as_json: opt.Json = False) -> None:
    """List the server's runs: state, rounds, who started them, and the hashes of their apps. On the server."""
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
        err.print("no run was started yet")


def stop_run(folder: RunningServer, name: RunName = None) -> None:
    """Stop a run; it can be resumed. On the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        number, run_folder = _chosen(to_server, name)
        to_server.stop(number)
    out.print(f"{run_folder.name}: stopped; {run_folder} can be resumed")


def attach(folder: RunningServer, name: RunName = None) -> None:
    """Follow a run that was started before, from its first event; Ctrl-C leaves it running. On the server."""
    server = ServerFolder(folder.absolute())
    with control(server) as to_server:
        number, run_folder = _chosen(to_server, name)
        rounds = RunFolder.open(run_folder).config().get("rounds", 0)
        try:
            follow_run(to_server, number, EventFile(run_folder), EventView(rounds, Registry(server.path).names()))
        except KeyboardInterrupt:
            err.print("left; the run goes on")
            return
    show_result(run_folder, check=False)


def _line(texts: Sequence[Any], widths: Sequence[int]) -> str:
    return "  ".join(f"{printable(text):<{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()


def _running(to_server: Control) -> dict[int, str]:
    """Return the names of the runs that are not finished, by number."""
    runs = to_server.runs()
    started = {entry["run"]: Path(entry["options"]["run-folder"]).name for entry in to_server.server.audited("start")}
    return {number: started.get(number, str(number)) for number, about in runs.items() if about.stage != "finished"}


def _chosen(to_server: Control, name: str | None) -> tuple[int, Path]:
    """Return the number and the folder of a running run."""
    folders: dict[int, Any] = {e["run"]: e["options"]["run-folder"] for e in to_server.server.audited("start")}
    found = [number for number, own in _running(to_server).items() if name in (None, own) and number in folders]
    if len(found) != 1:
        names = ", ".join(_running(to_server).values()) or "none"
        what = f"{len(found)} runs go on" if name is None else f"no run {name} goes on"
        raise ConfigError(f"{what}; name one that does (running: {names})")
    return found[0], Path(folders[found[0]])


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
