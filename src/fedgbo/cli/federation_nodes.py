"""`fedgbo federation serve`, `join` and `allow`: the commands that keep a server or a node running."""

import re
import shlex
import sys
import time
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err
from fedgbo.cli.federation_view import printable, quoted
from fedgbo.core import ConfigError
from fedgbo.federation.apps import Apps
from fedgbo.federation.credentials import NodeFolder
from fedgbo.federation.network import LOOPBACK, Address
from fedgbo.federation.processes import Process, Service, Tail, attend, stop
from fedgbo.federation.signatures import Welcome, say_hello
from fedgbo.federation.superlink import REPLY_MIB, ServerFolder, start_server
from fedgbo.federation.supernode import ConfigValue, NodeWatch, start_joined, start_node
from fedgbo.flower.registry import MOST_CLIENTS, Registry, client_numbers, in_words

_LIAR = re.compile(r"node_id=(\d+) (announced an object of the server with wrong parts)")  # in the SuperLink's log


def _read_settings(context: typer.Context, file: Path | None) -> Path | None:
    """Use the keys of a TOML file as defaults of the command's arguments and options."""
    if file is None:
        return None
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}") from error
    known = {str(parameter.name): parameter for parameter in context.command.params}
    for key, value in table.items():
        if key.replace("-", "_") not in known or key == "settings":
            raise ConfigError(f"{file}: unknown key '{key}' (known: {', '.join(sorted(set(known) - {'settings'}))})")
        if isinstance(value, dict):
            value = [f"{name}={one}" for name, one in value.items()]
        context.default_map = {**(context.default_map or {}), key.replace("-", "_"): value}
    return file


SettingsFile = Annotated[
    Path | None,
    Option("--settings", is_eager=True, callback=_read_settings, help="TOML file with these arguments and options."),
]


def serve(
    folder: Annotated[Path, Argument(metavar="SERVER", help="The server's folder, with its certificates.")],
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 for all of them.")] = LOOPBACK,
    port: Annotated[int, Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    max_reply: Annotated[
        int, Option(min=1, metavar="MIB", help="The most that a node may send in a round, in MiB.")
    ] = REPLY_MIB,
    settings: SettingsFile = None,
) -> None:
    """Run the server that nodes connect to, until Ctrl-C. Run this on the server."""
    listen, server = Address(host, port), ServerFolder(folder.absolute())
    services = start_server(server, listen, reply_mib=max_reply)
    refusals, link = (Tail(log, log.stat().st_size) for log in (server.proxy_log, server.log))
    try:
        server.audit("serve", address=str(listen))
        err.print(f"serving nodes at {printable(listen)}; logs: {printable(server.log)}, {printable(server.proxy_log)}")
        err.print(f"admit nodes with: fedgbo federation register {quoted(folder)} KEY.pub --clients 0; Ctrl-C ends it")
        while True:
            attend(services, lambda text: err.print(f"[yellow]{printable(text)}[/]"))
            for line in refusals.lines():
                if "WARNING" in line:
                    err.print(printable(line))
            for line in link.lines():
                if found := _LIAR.search(line):
                    node = Registry(server.path).by_id().get(int(found[1]))
                    err.print(f"[yellow]{printable(node.name if node else 'a node that was removed')} {found[2]}[/]")
            time.sleep(0.2)
    except KeyboardInterrupt:
        err.print("ended; registered nodes are remembered")
    finally:
        stop(service.process for service in services)
        server.forget()


def join(
    address: Annotated[str, Argument(metavar="HOST:PORT", help="The server.")],
    node: Annotated[Path, Option(help="The node's folder, with its key.")],
    ca: Annotated[Path, Option(help="The federation's authority, ca.crt, from the server.")],
    clients: Annotated[
        str | None, Option(help="The clients this node hosts, e.g. 0 or 0-4. \\[default: those it is registered for]")
    ] = None,
    config: Annotated[
        list[str] | None,
        Option("--config", "-c", metavar="KEY=VALUE", help="A setting for the task's builder; repeatable."),
    ] = None,
    app_sha256: Annotated[opt.Texts, Option(help="Run this app only; repeatable. Others are refused.")] = None,
    any_app: Annotated[bool, Option("--any-app", help="Run every app that the server sends, without asking.")] = False,
    settings: SettingsFile = None,
) -> None:
    """Take part in a federation as a node, until Ctrl-C. Run this on the node."""
    if any_app and app_sha256:
        raise ConfigError("give --app-sha256 or --any-app, not both")
    server, place, authority = Address.of(address), NodeFolder(node.absolute()), ca.absolute()
    welcome = say_hello(place, server, authority)
    own = node_settings(clients, welcome, config)
    apps = Apps(place.apps)
    apps.pin(app_sha256 or [])

    told = ""

    def tell(text: str) -> None:
        nonlocal told
        if text != told:  # nothing twice in a row, such as why a server refuses
            err.print(printable(text))
        told = text

    def start() -> Process:
        say_hello(place, server, authority)  # again before each restart, for the reason if the server refuses
        return start_joined(lambda: start_node(place, server, authority, own, any_app=any_app), place, server, tell)

    questions = AppQuestions(apps, place, bool(app_sha256))
    watch = NodeWatch(place.log)
    service = Service(start)
    try:
        tell(f"{welcome.name} has joined the federation at {server}; log: {place.log}; Ctrl-C ends it")
        while True:
            attend([service], tell)
            for line in watch.new():
                tell(line)
            questions.ask()
            time.sleep(0.2)
    except KeyboardInterrupt:
        err.print("left the federation")
    finally:
        stop([service.process])


def allow(
    node: Annotated[Path, Argument(metavar="NODE", help="The node's folder.")],
    sha256: Annotated[str, Argument(metavar="SHA256", help="The app's hash, as the node shows it.")],
    refuse: Annotated[bool, Option("--refuse", help="Refuse the app instead.")] = False,
) -> None:
    """Allow an app that a server sent to a node, or refuse it. Run this on the node."""
    Apps(NodeFolder(node.absolute()).apps).answer(sha256, allowed=not refuse)
    err.print(f"app {sha256} is {'refused' if refuse else 'allowed'} here from now on")


def node_settings(clients: str | None, welcome: Welcome, extra: list[str] | None) -> dict[str, ConfigValue]:
    """Return a node's configuration; its clients are those that its key is registered for, or some of them."""
    allowed = set(client_numbers(welcome.clients, MOST_CLIENTS))
    if foreign := set(client_numbers(clients or welcome.clients, MOST_CLIENTS)) - allowed:
        raise ConfigError(
            f"this node is registered as {welcome.name} for clients {welcome.clients}, not for "
            f"{in_words(sorted(foreign))}; leave --clients out, or have the server's operators register the key again"
        )
    config: dict[str, ConfigValue] = {"clients": (clients or welcome.clients).replace(" ", "")}
    for text in extra or []:
        name, equals, value = text.partition("=")
        if not equals or name == "clients":
            raise ConfigError(f"'{text}' must be key=value, e.g. data=/srv/records.csv")
        config[name] = value
    return config


class AppQuestions:
    """Asks the node's operators about apps that the server sent: at a terminal, else by naming the command to run."""

    def __init__(self, apps: Apps, node: NodeFolder, pinned: bool) -> None:
        self._apps, self._node, self._pinned = apps, node, pinned
        self._announced: set[str] = set()

    def ask(self) -> None:
        """Ask about the apps that wait for an answer."""
        for app in self._apps.asked():
            if self._pinned:
                err.print(f"[yellow]refused:[/] {printable(app)} is not among the apps of --app-sha256")
                self._apps.answer(app.sha256, allowed=False)
            elif sys.stdin.isatty():
                err.print(f"the server asks this node to run {printable(app)}")
                question = "Run it here, with access to this node's data?"
                self._apps.answer(app.sha256, allowed=typer.confirm(question, err=True))
            elif app.sha256 not in self._announced:
                self._announced.add(app.sha256)
                command = ["fedgbo", "federation", "allow", str(self._node.path), app.sha256]
                err.print(f"[yellow]the server asks this node to run[/] {printable(app)}")
                err.print(f"allow it with: {printable(shlex.join(command))}")
