"""`fedgbo federation`: real federations on Flower, on this machine or on several, one command for each step."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedgbo.cli import federation_nodes as machines
from fedgbo.cli import federation_runs as server_runs
from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out
from fedgbo.cli.federation_runs import Check, FederationOptions, options_of
from fedgbo.cli.federation_view import (
    follow_run,
    printable,
    quoted,
    resumable,
    show_digests,
    show_result,
    stopped_on_error,
)
from fedgbo.core import ConfigError
from fedgbo.experiments.request import requested_config
from fedgbo.federation.app_folder import SETTINGS, write_app
from fedgbo.federation.control import bundle
from fedgbo.federation.credentials import make_certificates, make_node
from fedgbo.federation.local import LocalFolder, prepare, running, start_run
from fedgbo.federation.monitor import EventFile
from fedgbo.runs.config import RunConfig
from fedgbo.runs.describe import find, parameters

app = typer.Typer(
    no_args_is_help=True,
    help="Run real federations on Flower: try one out on this machine (up), or run one on several machines (new, "
    "certs, key, serve, register, join, run). nodes, status, attach and stop show and control nodes and runs.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "serve": machines.serve,
    "join": machines.join,
    "allow": machines.allow,
    "register": server_runs.register,
    "unregister": server_runs.unregister,
    "nodes": server_runs.nodes,
    "run": server_runs.run,
    "status": server_runs.status,
    "stop": server_runs.stop_run,
    "attach": server_runs.attach,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


@app.command()
def up(
    items: opt.Items = None,
    task: opt.Task = None,
    algorithm: opt.Algorithm = None,
    optimiser: opt.Optimiser = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    nodes: Annotated[
        int | None, Option(help="The number of nodes; node i of n hosts clients i, i+n, ... \\[default: 3]")
    ] = None,
    option: FederationOptions = None,
    check: Check = False,
    to: Annotated[Path | None, opt.Out(help="The federation's folder. \\[default: runs/<name>]")] = None,
    resume: Annotated[Path | None, Option(help="Resume the federation in this folder.")] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Try out a whole federation on this machine: certificates, keys, server, nodes, run and clean-up.

    fedgbo federation up --task digits --algorithm fedgbo --optimiser sgdm --nodes 3 --rounds 5 --check
    """
    flags = _flags(task, algorithm, optimiser, preset, rounds, seed)
    if resume is None:
        config = opt.requested_run(items, flags, quiet)
        if check and (missing := _missing(config)):
            raise ConfigError(
                f"--check repeats the run without nodes, but task {config.task['name']} needs {', '.join(missing)}, "
                "which nodes give it; leave --check out"
            )
        path = to or opt.new_folder("federation", config.task["name"], config.label, claim=False)
        folder = prepare(path, config, 3 if nodes is None else nodes, options_of(option))
    else:
        if items or option or any(flag is not None for flag in (*flags.values(), nodes, to)):
            raise ConfigError("--resume uses the settings of the federation; give it without other settings")
        folder = LocalFolder(resume.absolute())
        requested_config(folder.app / SETTINGS)

    def logs() -> list[str]:
        return [f"logs: {folder.server.app_log}, {folder.server.log}; each node's: {folder.path}/node-*/node.log"]

    tell: Callable[[str], None] = (lambda text: None) if quiet else err.print
    again = shlex.join(["fedgbo", "federation", "up", "--resume", str(folder.path)])
    with resumable(lambda: again, logs), running(folder, tell) as federation:
        events = EventFile(folder.run, skip=True)
        number = start_run(folder, federation)
        with stopped_on_error(federation.control, number):
            follow_run(federation.control, number, events, quiet, federation)
    show_result(folder.run, check)


@app.command()
def new(
    folder: Annotated[Path, Argument(metavar="DIR", help="The app's folder, which is created.")],
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
    if not _missing(config):
        err.print(f"the same run without a federation: fedgbo run {quoted(settings)}")
    err.print(f"run it on a running server: fedgbo federation run SERVER {quoted(folder)}")
    err.print(f"nodes can pin the app: fedgbo federation join ... --app-sha256 {bundle(folder)[1]}")


@app.command()
def certs(
    folder: Annotated[Path, Argument(metavar="SERVER", help="The server's folder.")],
    host: Annotated[
        opt.Texts, Option(help="A host name or IP address by which nodes reach the server; repeatable.")
    ] = None,
    days: Annotated[int, Option(help="How long the server's certificate is valid.")] = 365,
) -> None:
    """Make the server's certificate and the authority that signs it. Run this once, on the server."""
    names = make_certificates(folder, host or [], days)
    out.print(printable(folder / "ca.crt"))
    err.print(f"valid for {', '.join(names)}; send ca.crt, and no other file of {printable(folder)}, to every node")


@app.command()
def key(
    folder: Annotated[Path, Argument(metavar="NODE", help="The node's folder; its name is the node's name.")],
) -> None:
    """Make a node's key pair. Run this once, on the node; the private key never leaves the node."""
    node = make_node(folder)
    out.print(printable(node.public_key))
    err.print(f"send {node.public_key.name}, and no other file of {printable(folder)}, to the server's operators")


@app.command()
def digest(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The folder that `up` or `run` wrote, or a run folder.")],
    simulate: Annotated[bool, Option(help="Also carry out the same run without a federation, and compare.")] = True,
    as_json: opt.Json = False,
) -> None:
    """Print the digest of a federation's result and that of `fedgbo run` with the same settings."""
    run = folder / "run" if (folder / "run" / "run.json").exists() else folder
    show_digests(run, simulate, as_json)


def _missing(config: RunConfig) -> list[str]:
    """Return the arguments that the task's function needs and the settings lack, such as a node's configuration."""
    needed = [key for key, must in parameters(find("task", config.task["name"])).items() if must]
    return [key for key in needed if key not in config.task]


def _flags(*values: str | int | None) -> dict[str, Any]:
    return dict(zip(("task", "algorithm", "optimiser", "preset", "rounds", "seed"), values, strict=True))
