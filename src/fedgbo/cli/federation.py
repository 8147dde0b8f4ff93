"""`fedgbo federation`: from an app's folder to a run on real machines, each step a command."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedgbo.cli import federation_run as going
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
from fedgbo.cli.federation_view import plain
from fedgbo.federation.app_folder import write_app
from fedgbo.federation.control import control
from fedgbo.federation.credentials import make_certificates, make_node, read_public_key
from fedgbo.federation.superlink import ServerFolder
from fedgbo.runs.describe import find, parameters

app = typer.Typer(
    no_args_is_help=True,
    help="Real federations on Flower: try one out on this machine (up), or run one on several (new, certs, key, "
    "serve, register, join, run).",
)
app.command()(going.up)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder, to be made.")],
    items: Items = None,
    task: TaskName = None,
    algorithm: Algorithm = None,
    optimiser: Optimiser = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seed: Seed = None,
    option: Option = None,
) -> None:
    """Write an app for Flower: pyproject.toml, task.py, client_app.py, server_app.py, settings.toml.

    A task of your own, my_file.py:function, is copied into task.py, which the server sends to the nodes.
    """
    with clean_errors():
        config, note = asked_for(items, task, algorithm, optimiser, preset, rounds, seed)
        if note:
            err.print(f"{config.label} on {config.task['name']}, {note}")
        settings = write_app(folder, config, options_of(option))
        out.print(plain(folder))
        needed = [key for key, must in parameters(find("task", config.task["name"])).items() if must]
        if set(needed) <= set(config.task):  # a function that asks for a node's configuration needs a node
            err.print(f"the same run without a federation: fedgbo run {plain(shlex.quote(str(settings)))}")
        err.print(f"on a server that runs: fedgbo federation run SERVER {plain(shlex.quote(str(folder)))}")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="SERVER", help="The server's folder.")],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or IP address that nodes call the server by; may be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.")] = 365,
) -> None:
    """Make the server's certificate and the authority that vouches for it. At the server, once."""
    with clean_errors():
        names = make_certificates(folder, host or [], days)
        out.print(plain(folder / "ca.crt"))
        err.print(f"valid for {', '.join(names)}; give ca.crt, and nothing else of {plain(folder)}, to every node")


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(metavar="NODE", help="The node's folder; its name is the node's.")],
) -> None:
    """Make a node's key pair. At the node, once: the private key never leaves it."""
    with clean_errors():
        node = make_node(folder)
        out.print(plain(node.public_key))
        err.print(f"send {node.public_key.name}, and nothing else of {plain(folder)}, to the server's people")


@app.command()
def register(
    folder: Annotated[Path, typer.Argument(metavar="SERVER", help="The server's folder; its server must run.")],
    keys: Annotated[list[Path], typer.Argument(metavar="KEY.pub...", help="Nodes' public keys.")],
    insecure: Annotated[bool, typer.Option(help="The server runs without TLS.")] = False,
) -> None:
    """Let nodes in, by their public keys. At the server."""
    with clean_errors():
        known = [(path, read_public_key(path)) for path in keys]
        server = ServerFolder(folder)
        with control(server.address(), None if insecure else server.ca) as to_server:
            for path, public_key in known:
                number = to_server.register(public_key, path.stem)
                out.print(f"{path.stem}: " + ("was registered before" if number is None else f"registered as {number}"))


app.command()(going.serve)
app.command()(going.join)
app.command()(going.run)


@app.command()
def digest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `up` or `run` wrote, or a run's folder.")],
    simulate: Annotated[bool, typer.Option(help="Also do the same run without a federation, and compare.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the digest of a federation's result and that of `fedgbo run` with the same settings."""
    with clean_errors():
        run = folder / "run" if (folder / "run" / "run.json").exists() else folder
        going.show_digests(run, simulate, as_json)
