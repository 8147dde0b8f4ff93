"""Which apps a node's operators allowed: a folder with one JSON file for each app that a server sent.

An app is named by the SHA-256 of its content. A node runs an app only if its file says that it is allowed. For an app
without a file the node writes one that asks; the operators' answer is written into it and remembered.
`guard_client_apps` puts this check into Flower's process for client apps, and keeps the text of their exceptions in the
node's log. `Fork` is such a process, or one for a server's app.
"""

import hashlib
import importlib
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from fedgbo.core import ConfigError, FederationError
from fedgbo.core.files import write_atomic
from fedgbo.federation.credentials import private_folder, user_name

_SHA256 = re.compile("[0-9a-f]{64}")
STUCK_SECONDS = 10.0  # for the end of a task when the next one has come
IDLE_SECONDS = 600.0  # after which the process of a node's app ends, and frees its memory
KNOWN = ("run", "app", "started-by", "started-at")  # what is shown of the run for which an app is sent
LOG = logging.getLogger("flwr")


class AppNotAllowed(FederationError):  # noqa: N818 - the operators' decision
    """The node's operators have not allowed an app."""


@dataclass(frozen=True)
class App:
    """An app that a server sent or that was pinned; `about` is what the server says of it."""

    sha256: str
    state: str  # asked, allowed, refused
    when: str
    about: Mapping[str, Any]

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return f"app {self.sha256}" + (f" ({told})" if told else "")


class Apps:
    """The folder of a node's apps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, content: bytes, claimed: str, about: Mapping[str, Any]) -> None:
        """Raise AppNotAllowed unless the app with this content is allowed; ask the operators if it is new."""
        sha256 = hashlib.sha256(content).hexdigest()
        if claimed != sha256:
            raise AppNotAllowed("the app's content does not have the hash that the server names")
        found = self.read(sha256)
        if found is None:
            self._write(sha256, "asked", {key: about[key] for key in KNOWN if about.get(key)})
        if found is None or found.state == "asked":
            raise AppNotAllowed(f"app {sha256} waits for the node's operators to allow it")
        if found.state != "allowed":
            raise AppNotAllowed(f"app {sha256} was refused by the node's operators")

    def read(self, sha256: str) -> App | None:
        """Return what is known of an app."""
        file = self.path / f"{sha256}.json"
        try:
            return App(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise AppNotAllowed(f"{file} cannot be read; remove it to be asked again") from error

    def asked(self) -> Iterator[App]:
        """Yield the apps that wait for an answer."""
        for file in sorted(self.path.glob("*.json")):
            if (app := self.read(file.stem)) is not None and app.state == "asked":
                yield app

    def answer(self, sha256: str, allowed: bool) -> None:
        """Remember the operators' answer."""
        if not _SHA256.fullmatch(sha256):
            raise ConfigError(f"'{sha256}' is not a SHA-256; `fedgbo federation new` and `run` print the app's")
        known = self.read(sha256)
        about = {**(known.about if known else {}), "answered-by": user_name()}
        self._write(sha256, "allowed" if allowed else "refused", about)

    def pin(self, hashes: Sequence[str]) -> None:
        """Allow these apps and refuse all others that were allowed before; without hashes change nothing."""
        for file in sorted(self.path.glob("*.json")) if hashes else ():
            if file.stem not in hashes:
                self.answer(file.stem, allowed=False)
        for sha256 in hashes:
            self.answer(sha256, allowed=True)

    def _write(self, sha256: str, state: str, about: Mapping[str, Any]) -> None:
        private_folder(self.path)
        app = App(sha256, state, datetime.now(UTC).isoformat(timespec="seconds"), dict(about))
        write_atomic(self.path / f"{sha256}.json", (json.dumps(asdict(app)) + "\n").encode())


def guard_client_apps(apps: Apps | None, replace: Callable[..., None], done: type[BaseException]) -> None:
    """Let client apps run only if allowed, keep the text of their exceptions here, and the process after a task.

    This is for launch.py: `replace` replaces parts of Flower, and `done` ends a task.
    """
    from flwr.supercore.exit.exit_handler import trigger_exit_handlers

    from fedgbo.flower.node import forget_tasks

    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    pull, install, error = module.pull_task_input, module.install_from_fab, module.Error
    sent: dict[str, Any] = {}
    refusals: list[str] = []

    def pull_task_input(runtime: Any) -> Any:
        message, context, run, fab = pull(runtime)
        refusals.clear()
        if run.run_id != sent.get("run"):
            forget_tasks()  # a node's data may have changed between two runs
        place = module.get_project_dir(run.fab_id, run.fab_version, fab.hash_str)  # from which Flower loads the app
        sent.update(
            run=run.run_id,
            hash=fab.hash_str,
            place=place,
            about={"run": run.run_id, "app": run.fab_id, **context.run_config},
        )
        return message, context, run, fab

    def install_from_fab(content: bytes, **more: Any) -> Any:
        try:
            if apps is not None:
                apps.check(content, sent["hash"], sent["about"])
            if (path := install(content, **more)) != sent["place"]:
                raise AppNotAllowed("app of another name or version than the server says")
        except AppNotAllowed as refusal:
            refusals.append(str(refusal))
            raise
        return path

    def without_text(code: int, reason: str) -> Any:
        return error(code=code, reason="".join(refusals) or "the node's log says more")

    def flwr_exit(code: int, **more: Any) -> NoReturn:
        for first in (True, False):
            trigger_exit_handlers(run_before_force_exit=first)
        raise done

    parts = {"pull_task_input": pull_task_input, "install_from_fab": install_from_fab, "flwr_exit": flwr_exit}
    replace(module.__name__, **parts, Error=without_text)


@dataclass(eq=False)
class Fork:
    """A process for the tasks of one app."""

    pid: int
    command: str
    app: str | None  # hash
    channel: Connection  # tasks go in, and a word comes back for each that is done
    tasks: list[Any] = field(default_factory=list)  # not done yet
    idle: float = field(default_factory=time.monotonic)  # since when there are none
    blocks: float = float("inf")  # since when it does a task while another one waits

    def give(self, spec: Any) -> None:
        """Send it a task."""
        words = [self.command, "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
        words += ["--insecure"] if spec.insecure else ["--root-certificates", str(spec.root_certificates_path)]
        self.channel.send(words)
        self.make_room()
        self.tasks.append(spec)

    def make_room(self) -> None:
        """Note that another task has come, so that the node is done with the last one, or has given it up."""
        self.blocks = min(self.blocks, time.monotonic()) if self.tasks else float("inf")

    def hear(self) -> None:
        """Note the tasks that are done; end the process after a long time without any, or at one that was given up."""
        with suppress(OSError, EOFError):  # closed
            while self.channel.poll():
                self.channel.recv()
                self.tasks.pop(0)
                self.idle, self.blocks = time.monotonic(), float("inf")
            if not self.tasks and time.monotonic() - self.idle > IDLE_SECONDS:
                self.channel.close()
            if time.monotonic() - self.blocks > STUCK_SECONDS:
                self.blocks = float("inf")
                LOG.error("an app's process waits for work that the server took back; it is started again")
                os.kill(self.pid, signal.SIGTERM)
