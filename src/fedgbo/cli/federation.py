"""`fedgbo federation`: real federations on Flower, on this machine or on several, one command for each step."""

import shlex
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out
from fedgbo.cli.federation_view import EventView, follow_run, printable, resumable, show_digests, show_result
from fedgbo.core import ConfigError, FederationError, unknown
from fedgbo.experiments.request import requested_config
from fedgbo.federation.app_folder import OPTIONS, SETTINGS, write_app
from fedgbo.federation.control import control
from fedgbo.federation.credentials import NodeFolder, make_certificates, make_node, read_public_key
from fedgbo.federation.local import LocalFolder, overrides, prepare, running, start_run
from fedgbo.federation.monitor import attended
from fedgbo.federation.network import LOOPBACK, Address
from fedgbo.federation.processes import stop
from fedgbo.federation.superlink import ServerFolder, exposure, start_superlink
from fedgbo.federation.supernode import NodeWatch, start_supernode, wait_joined
from fedgbo.runs.describe import find, parameters
from fedgbo.runs.folder import RunFolder

USER_OPTIONS = {key: OPTIONS[key] for key in OPTIONS if key not in ("run-folder", "settings", "resume")}

FederationOptions = Annotated[
    list[str] | None,
    Option("--option", "-c", metavar="KEY=VALUE", help=f"Of the federation: {', '.join(USER_OPTIONS)}; repeatable."),
]
Check = Annotated[bool, Option(help="Do the run without a federation too, and compare the results.")]
RunningServer = Annotated[Path, Argument(metavar="SERVER", help="The server's folder; its server must run.")]
WithoutTLS = Annotated[bool, Option(help="The server runs without TLS.")]

app = typer.Typer(
    no_args_is_help=True,
    help="Real federations on Flower: try one out on this machine (up), or run one on several (new, certs, key, "
    "serve, register, join, run).",
)


@app.command()
def up(
    items: opt.Items = None,
    task: opt.Task = None,
    algorithm: opt.Algorithm = None,
    optimiser: opt.Optimiser = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    nodes: Annotated[int | None, Option(help="How many; node i of n hosts clients i, i+n, ... \\[default: 3]")] = None,
    option: FederationOptions = None,
    check: Check = False,
    to: Annotated[Path | None, opt.Out(help="The federation's folder. \\[default: runs/<name>]")] = None,
    resume: Annotated[Path | None, Option(help="Resume the federation in this folder.")] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Try out a whole federation on this machine: certificates, keys, server, nodes, run, and a clean end.

    fedgbo federation up --task digits --algorithm fedgbo --optimiser sgdm --nodes 3 --rounds 5 --check
    """
    flags = _flags(task, algorithm, optimiser, preset, rounds, seed)
    if resume is None:
        config = opt.requested_run(items, flags, quiet)
        path = to or opt.new_folder("federation", config.task["name"], config.label)
        folder = prepare(path, config, 3 if nodes is None else nodes, options_of(option))
    else:
        if items or option or any(flag is not None for flag in (*flags.values(), nodes, to)):
            raise ConfigError("--resume uses the settings that the federation has; give it alone")
        folder = LocalFolder(resume.absolute())
        config = requested_config(folder.app / SETTINGS)[0]

    def logs() -> list[str]:
        files = ", ".join(str(log) for log in (folder.log, folder.server.log) if log.exists())
        return [f"logs: {files}; each node's: {folder.path}/node-*/node.log"]

    tell: Callable[[str], None] = (lambda text: None) if quiet else err.print
    again = shlex.join(["fedgbo", "federation", "up", "--resume", str(folder.path)])
    with resumable(lambda: again, logs), running(folder, tell) as federation:
        number = start_run(folder, federation)
        view = EventView(config.rounds, federation.names)
        with attended(federation.control, number, folder.log):
            follow_run(federation.control, number, folder.run, None if quiet else view, federation.processes)
    show_result(folder.run, check)


@app.command()
def new(
    folder: Annotated[Path, Argument(metavar="DIR", help="The app's folder, to be made.")],
    items: opt.Items = None,
    task: opt.Task = None,
    algorithm: opt.Algorithm = None,
    optimiser: opt.Optimiser = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    option: FederationOptions = None,
) -> None:
    """Write an app for Flower: pyproject.toml, task.py, client_app.py, server_app.py, settings.toml.

    A task of your own, my_file.py:function, is copied into task.py, which the server sends to the nodes.
    """
    config = opt.requested_run(items, _flags(task, algorithm, optimiser, preset, rounds, seed))
    settings = write_app(folder, config, options_of(option))
    out.print(printable(folder))
    needed = [key for key, must in parameters(find("task", config.task["name"])).items() if must]
    if set(needed) <= set(config.task):  # otherwise the task needs a node's configuration
        err.print(f"the same run without a federation: fedgbo run {_quoted(settings)}")
    err.print(f"on a server that runs: fedgbo federation run SERVER {_quoted(folder)}")


@app.command()
def certs(
    folder: Annotated[Path, Argument(metavar="SERVER", help="The server's folder.")],
    host: Annotated[opt.Texts, Option(help="A name or IP address that nodes call the server by; repeatable.")] = None,
    days: Annotated[int, Option(help="How long the server's certificate is valid.")] = 365,
) -> None:
    """Make the server's certificate and the authority that signs it. On the server, once."""
    names = make_certificates(folder, host or [], days)
    out.print(printable(folder / "ca.crt"))
    err.print(f"valid for {', '.join(names)}; give ca.crt, and nothing else of {printable(folder)}, to every node")


@app.command()
def key(
    folder: Annotated[Path, Argument(metavar="NODE", help="The node's folder; its name is the node's.")],
) -> None:
    """Make a node's key pair. On the node, once: the private key never leaves it."""
    node = make_node(folder)
    out.print(printable(node.public_key))
    err.print(f"send {node.public_key.name}, and nothing else of {printable(folder)}, to the server's operators")


@app.command()
def register(
    folder: RunningServer,
    keys: Annotated[list[Path], Argument(metavar="KEY.pub...", help="Nodes' public keys.")],
    insecure: WithoutTLS = False,
) -> None:
    """Admit nodes by their public keys. On the server."""
    known = [(path, read_public_key(path)) for path in keys]
    server = ServerFolder(folder)
    with control(server.address(), None if insecure else server.ca) as to_server:
        for path, public_key in known:
            number = to_server.register(public_key, path.stem)
            out.print(f"{path.stem}: " + ("was registered before" if number is None else f"registered as {number}"))


@app.command()
def serve(
    folder: Annotated[Path, Argument(metavar="SERVER", help="The server's folder, with its certificates.")],
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 for all of them.")] = LOOPBACK,
    port: Annotated[int, Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    insecure: Annotated[bool, Option(help="Without TLS and keys; on loopback only.")] = False,
) -> None:
    """Run the server that nodes connect to, until Ctrl-C. On the server."""
    listen, server = Address(host, port), ServerFolder(folder.absolute())
    if (warning := exposure(listen)) is not None:
        err.print(f"[bold yellow]warning:[/] {warning}")
    process = start_superlink(server, listen, insecure=insecure)
    try:
        err.print(f"serving at {printable(listen)}; log: {printable(server.log)}; Ctrl-C ends it")
        err.print(f"admit nodes with: fedgbo federation register {_quoted(folder)} KEY.pub")
        while process.alive:
            time.sleep(0.2)
        raise FederationError(f"the SuperLink is gone; {process.last_words()}; start it again with the same command")
    except KeyboardInterrupt:
        err.print("ended; registered nodes are remembered")
    finally:
        stop([process])
        server.forget()


@app.command()
def join(
    address: Annotated[str, Argument(metavar="HOST:PORT", help="The server.")],
    node: Annotated[Path, Option(help="The node's folder, with its key.")],
    ca: Annotated[Path | None, Option(help="The federation's authority, ca.crt, from the server.")] = None,
    clients: Annotated[str | None, Option(help="The clients this node hosts, e.g. 0 or 0,3,6.")] = None,
    config: Annotated[
        list[str] | None, Option("--config", "-c", metavar="KEY=VALUE", help="For the task's builder; repeatable.")
    ] = None,
    insecure: Annotated[bool, Option(help="Without TLS; only for a server that runs so.")] = False,
) -> None:
    """Take part in a federation as a node, until Ctrl-C. On the node."""
    if (ca is None) != insecure:
        raise ConfigError("give the federation's authority with --ca ca.crt, which the server's operators have")
    server, place = Address.of(address), NodeFolder(node.absolute())
    process = start_supernode(place, server, ca and ca.absolute(), _node_config(clients, config))
    try:
        wait_joined(process, place, server)
        err.print(f"{place.name} has joined the federation at {server}; log: {printable(place.log)}; Ctrl-C ends it")
        watch = NodeWatch(process)
        while process.alive:
            for line in watch.new():
                err.print(printable(line))
            time.sleep(0.2)
        raise FederationError(f"the node ended; {process.last_words()}")
    except KeyboardInterrupt:
        err.print("left the federation")
    finally:
        stop([process])


@app.command()
def run(
    server: RunningServer,
    app: Annotated[Path, Argument(metavar="APP", help="The app's folder, from `fedgbo federation new`.")],
    to: Annotated[Path | None, opt.Out(help="The run's folder. \\[default: runs/<name>]")] = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    option: FederationOptions = None,
    check: Check = False,
    insecure: WithoutTLS = False,
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
        words += [word for text in option or [] for word in ("-c", text)]
        return shlex.join([*words, "--insecure"] if insecure else words)

    logs: list[str] = []
    with resumable(again, lambda: logs), control(place.address(), None if insecure else place.ca) as to_server:
        number = to_server.start(app.absolute(), overrides(settings, folder, options_of(option)))
        log = place.path / f"run-{number}.log"
        logs.append(f"log: {log}")
        with attended(to_server, number, log):
            follow_run(to_server, number, folder, None if quiet else EventView(config.rounds))
    show_result(folder, check)


@app.command()
def digest(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="What `up` or `run` wrote, or a run's folder.")],
    simulate: Annotated[bool, Option(help="Also do the same run without a federation, and compare.")] = True,
    as_json: opt.Json = False,
) -> None:
    """Print the digest of a federation's result and that of `fedgbo run` with the same settings."""
    run = folder / "run" if (folder / "run" / "run.json").exists() else folder
    show_digests(run, simulate, as_json)


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


def _node_config(clients: str | None, extra: list[str] | None) -> dict[str, str | int | float | bool]:
    config: dict[str, str | int | float | bool] = {}
    if clients is not None:
        if not all(part.strip().isdigit() for part in clients.split(",")):
            raise ConfigError(f"--clients must be numbers such as 0 or 0,3,6, not '{clients}'")
        config["clients"] = clients.replace(" ", "")
    for text in extra or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' must be key=value, e.g. data=/srv/records.csv")
        config[name] = int(value) if name in ("partition-id", "num-partitions") and value.isdigit() else value
    if "clients" not in config and not {"partition-id", "num-partitions"} <= set(config):
        raise ConfigError("say which of the federation's clients this node hosts, e.g. --clients 0")
    return config


def _flags(*values: str | int | None) -> dict[str, Any]:
    return dict(zip(("task", "algorithm", "optimiser", "preset", "rounds", "seed"), values, strict=True))


def _quoted(path: Path) -> str:
    return printable(shlex.quote(str(path)))
