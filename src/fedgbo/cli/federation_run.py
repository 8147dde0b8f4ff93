"""The commands of `fedgbo federation` that run something: up, serve, join, run."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedgbo.cli.console import clean_errors, err, out
from fedgbo.cli.federation_options import (
    Algorithm,
    Items,
    Optimiser,
    Option,
    Preset,
    Rounds,
    Seed,
    TaskName,
    asked_for,
    options_of,
)
from fedgbo.cli.federation_view import EventView, plain, score
from fedgbo.cli.run import now
from fedgbo.core.errors import ConfigError, FederationError
from fedgbo.experiments.request import read_request
from fedgbo.federation.app_folder import SETTINGS
from fedgbo.federation.control import Control, control
from fedgbo.federation.credentials import NodeFolder
from fedgbo.federation.local import LocalFolder, overrides, prepare, running, start_run
from fedgbo.federation.monitor import Event, EventFile, attended, digest_of, follow, simulated
from fedgbo.federation.network import LOOPBACK, Address
from fedgbo.federation.processes import Process, stop
from fedgbo.federation.superlink import ServerFolder, exposure, start_superlink
from fedgbo.federation.supernode import NodeWatch, start_supernode, wait_joined
from fedgbo.runs.config import RunConfig
from fedgbo.runs.folder import RunFolder


def up(
    items: Items = None,
    task: TaskName = None,
    algorithm: Algorithm = None,
    optimiser: Optimiser = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seed: Seed = None,
    nodes: Annotated[
        int | None, typer.Option(help="How many; node i of n hosts the clients c with c mod n = i. [default: 3]")
    ] = None,
    option: Option = None,
    check: Annotated[bool, typer.Option(help="Do the run without a federation too, and compare the results.")] = False,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="The federation's folder. [default: runs/<name>]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the federation in this folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Try out a whole federation on this machine: certificates, keys, server, nodes, run, and a clean end.

    fedgbo federation up --task digits --algorithm fedgbo --optimiser sgdm --nodes 3 --rounds 5 --check
    """
    with clean_errors():
        if resume is None:
            config, note = asked_for(items, task, algorithm, optimiser, preset, rounds, seed)
            if note and not quiet:
                err.print(f"{config.label} on {config.task['name']}, {note}")
            name = f"federation-{config.task['name'].rpartition(':')[2]}-{config.label}-{now()}"
            folder = prepare(to or Path("runs") / name, config, 3 if nodes is None else nodes, options_of(option))
        else:
            flags = (task, algorithm, optimiser, preset, rounds, seed, nodes, to)
            if items or option or any(flag is not None for flag in flags):
                raise ConfigError("--resume goes on with the settings that the federation has; give it alone")
            folder = LocalFolder(resume.absolute())
            config = _settings(folder.app / SETTINGS)
        again = shlex.join(["fedgbo", "federation", "up", "--resume", str(folder.path)])
        with _resumable(lambda: again, folder), running(folder, _tell(quiet)) as federation:
            number = start_run(folder, federation)
            view = EventView(config.rounds, federation.names)
            with attended(federation.control, number, folder.log):
                _follow(federation.control, number, folder.run, view, quiet, federation.processes)
        _conclude(folder.run, check)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="SERVER", help="The server's folder, with its certificates.")],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of them.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    insecure: Annotated[bool, typer.Option(help="Without TLS and keys; on loopback only.")] = False,
) -> None:
    """Run the server that nodes connect to, until Ctrl-C. On the server."""
    with clean_errors():
        listen, server = Address(host, port), ServerFolder(folder.absolute())
        if (warning := exposure(listen)) is not None:
            err.print(f"[bold yellow]warning:[/] {warning}")
        process = start_superlink(server, listen, insecure=insecure)
        try:
            err.print(f"serving at {plain(listen)}; log: {plain(server.log)}; Ctrl-C ends it")
            err.print(f"let nodes in with: fedgbo federation register {plain(shlex.quote(str(folder)))} KEY.pub")
            while process.alive:
                time.sleep(0.2)
            raise FederationError(
                f"the SuperLink is gone; {process.last_words()}; start it again with the same command"
            )
        except KeyboardInterrupt:
            err.print("ended; registered nodes are remembered")
        finally:
            stop([process])
            server.forget()


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.")],
    node: Annotated[Path, typer.Option(help="The node's folder, with its key.")],
    ca: Annotated[Path | None, typer.Option(help="The federation's authority, ca.crt, from the server.")] = None,
    clients: Annotated[str | None, typer.Option(help="The clients this node hosts, e.g. 0 or 0,3,6.")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="For the task's builder; repeatable."),
    ] = None,
    insecure: Annotated[bool, typer.Option(help="Without TLS; only for a server that runs so.")] = False,
) -> None:
    """Take part in a federation as a node, until Ctrl-C. At the node."""
    with clean_errors():
        if (ca is None) != insecure:
            raise ConfigError("give the federation's authority with --ca ca.crt, which the server's people have")
        server, place = Address.of(address), NodeFolder(node.absolute())
        process = start_supernode(place, server, ca and ca.absolute(), _node_config(clients, config))
        try:
            wait_joined(process, place, server)
            err.print(f"{place.name} has joined the federation at {server}; log: {plain(place.log)}; Ctrl-C ends it")
            watch = NodeWatch(process)
            while process.alive:
                for line in watch.new():
                    err.print(plain(line))
                time.sleep(0.2)
            raise FederationError(f"the node ended; {process.last_words()}")
        except KeyboardInterrupt:
            err.print("left the federation")
        finally:
            stop([process])


def run(
    server: Annotated[Path, typer.Argument(metavar="SERVER", help="The server's folder; its server must run.")],
    app: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder, from `fedgbo federation new`.")],
    to: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder. [default: runs/<name>]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    option: Option = None,
    check: Annotated[bool, typer.Option(help="Do the run without a federation too, and compare the results.")] = False,
    insecure: Annotated[bool, typer.Option(help="The server runs without TLS.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Start a run on the federation, or go on with one, and follow it. On the server's machine."""
    with clean_errors():
        if resume is not None and to is not None:
            raise ConfigError("give --out for a new run or --resume for one that was begun, not both")
        settings = app / SETTINGS
        config = _settings(settings)
        folder = (resume or to or Path("runs") / f"federation-{app.name}-{now()}").absolute()
        if resume is not None:
            RunFolder.open(folder)
        elif (folder / "run.json").exists():
            raise ConfigError(f"{folder} already holds a run; go on with it with --resume {folder}")
        place = ServerFolder(server.absolute())

        def again() -> str:
            words = ["fedgbo", "federation", "run", str(place.path), str(app.absolute())]
            words += ["--resume" if (folder / "run.json").exists() else "--out", str(folder)]
            words += [word for text in option or [] for word in ("-c", text)]
            return shlex.join([*words, "--insecure"] if insecure else words)

        with _stops_with(again), control(place.address(), None if insecure else place.ca) as to_server:
            number = to_server.start(app.absolute(), overrides(settings, folder, options_of(option)))
            view = EventView(config.rounds)
            log = place.path / f"run-{number}.log"
            try:
                with attended(to_server, number, log):
                    _follow(to_server, number, folder, view, quiet)
            except FederationError as error:
                raise FederationError(f"{error}; log: {log}") from error
        _conclude(folder, check)


def show_digests(run: Path, simulate: bool, as_json: bool = False) -> None:
    """Print a run's digest and, if asked for, that of `fedgbo run` with its settings; exit code 1 if they differ."""
    digests = {"federation": digest_of(run)}
    if simulate:
        digests["fedgbo run"] = simulated(run)
    same = len(set(digests.values())) == 1
    if as_json:
        out.print_json(json.dumps({**digests, "same": same}))
    else:
        _print_digests(digests)
    if not same:
        raise typer.Exit(1)


def _print_digests(digests: Mapping[str, str]) -> None:
    width = max(map(len, digests))
    for name, value in digests.items():
        out.print(f"{name:<{width}}  {value}")
    if len(digests) > 1:
        out.print("the same, bit for bit" if len(set(digests.values())) == 1 else "[bold red]not the same[/]")


def _follow(
    to_server: Control,
    number: int,
    folder: Path,
    view: EventView,
    quiet: bool,
    processes: Sequence[Process] = (),
) -> None:
    """Show the run's events until it is over; raise if it did not complete."""

    def show(event: Event) -> None:
        if not quiet and (line := view.line(event)) is not None:
            err.print(line)

    def lost(process: Process) -> None:
        err.print(f"[yellow]{process.name} is gone;[/] {plain(process.last_words())}")

    ending = follow(to_server, number, EventFile(folder, skip=True), show, processes, lost)
    if not ending.completed:
        raise FederationError(f"the run did not finish: {ending.reason}")


def _conclude(run: Path, check: bool) -> None:
    """Print what came out and its digest, beside that of `fedgbo run` if asked for."""
    last = RunFolder.open(run).records()[-1]
    out.print(f"{score(last.accuracy, last.loss)} after {last.round} rounds in {last.seconds:.1f} s\n{plain(run)}")
    show_digests(run, check)


@contextmanager
def _resumable(again: Callable[[], str], folder: LocalFolder) -> Iterator[None]:
    """Say which logs to read after a failure, and how to go on."""
    with _stops_with(again):
        try:
            yield
        except FederationError as error:
            logs = ", ".join(str(log) for log in (folder.log, folder.server.log) if log.exists())
            raise FederationError(f"{error}\nlogs: {logs}; each node's: {folder.path}/node-*/node.log") from error


@contextmanager
def _stops_with(again: Callable[[], str]) -> Iterator[None]:
    """Say how to go on when a run stops before its end."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped; go on with: {plain(again())}")
        sys.exit(130)
    except FederationError as error:
        raise FederationError(f"{error}\ngo on with: {again()}") from error


def _settings(file: Path) -> RunConfig:
    config, _ = read_request(file, {}, []).resolve()
    return config


def _node_config(clients: str | None, extra: list[str] | None) -> dict[str, str | int | float | bool]:
    config: dict[str, str | int | float | bool] = {}
    if clients is not None:
        if not all(part.strip().isdigit() for part in clients.split(",")):
            raise ConfigError(f"--clients must be numbers such as 0 or 0,3,6, not '{clients}'")
        config["clients"] = clients.replace(" ", "")
    for text in extra or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' must be key=value, e.g. data=/srv/records.csv")
        config[key] = int(value) if key in ("partition-id", "num-partitions") and value.isdigit() else value
    if "clients" not in config and not {"partition-id", "num-partitions"} <= set(config):
        raise ConfigError("say which of the federation's clients this node hosts, e.g. --clients 0")
    return config


def _tell(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else err.print
