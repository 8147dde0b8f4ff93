"""Flower's processes, run by this module, which replaces parts of Flower; so do linkstate.py, apps.py, messenger.py.

    python -P launch.py superlink SECRET [OPTION]... | supernode OPTIONS [OPTION]... | superexec TASKS [OPTION]...

Each runs Flower's command of that name after a change for which Flower has no option. The parts that are replaced are
private: a new version of Flower may move them, and tests of real federations fail. Only the superexec needs torch.

superlink   asks for the content of the file SECRET, as a bearer token, on the Control API. It answers 503, which Flower
            retries, if its database is locked or full. What nodes say of the server's objects does not count.
            What expired is deleted.
supernode   ends when its loop ends, where Flower's stays without asking for work. During a run it asks after PACE. The
            lines of the file OPTIONS are options that other users must not read.
superexec   forks once for each app, so that a node loads its data and builds its model once for a run. Flower starts a
            process for each message, with the task's token on a command line that every user can read. On a server,
            TASKS is `server`. On a node, it is the folder of the apps that may run; `-` lets every app run.
"""

import ctypes
import hmac
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

LOG = logging.getLogger("flwr")
CLIENT, SERVER = "flwr-clientapp", "flwr-serverapp"  # types of tasks
OF_SERVER, OF_CLIENT = ("flwr.superlink.cli", "fedgbo.flower.strategy"), ("flwr.supernode.cli", "fedgbo.flower.node")
COMMANDS = {SERVER: OF_SERVER, CLIENT: OF_CLIENT}  # modules that tasks need
PACE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # Flower's variable: seconds after which a superexec asks for work again
RUN_SECONDS = 60.0  # after its last work, in which a node expects more


def run_superlink(arguments: Sequence[str]) -> None:
    """Run Flower's SuperLink with a secret on its Control API."""
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    from fedgbo.federation import linkstate

    secret = Path(arguments[0]).read_bytes().strip()

    class SecretPlugin(NoOpControlAuthnPlugin):
        """Lets those callers through that know the secret."""

        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
            tokens = [token if isinstance(token, bytes) else token.encode() for _, token in metadata]
            known = any(hmac.compare_digest(token, secret) for token in tokens)
            return super().validate_tokens_in_metadata(metadata) if known else (False, None)

    _replace("flwr.superlink.cli.flower_superlink", load_control_authn_plugin=SecretPlugin)
    linkstate.answer_503()
    linkstate.let_the_server_decide()
    linkstate.delete_what_expired()
    _command("flwr.superlink.cli", "flower_superlink", ["flower-superlink", *arguments[1:]])


def run_supernode(arguments: Sequence[str]) -> None:
    """Run Flower's SuperNode until its loop ends."""
    worked, pace = float("-inf"), float(os.environ.get(PACE, "1"))

    def sleep(seconds: float) -> None:
        nonlocal worked
        if seconds < 1.0:  # it waits for its app's reply
            worked = time.monotonic()
        time.sleep(min(seconds, 0.1 if seconds < 1.0 else pace if time.monotonic() - worked < RUN_SECONDS else seconds))

    _replace("flwr.supernode.start_client_internal", time=SimpleNamespace(sleep=sleep))
    words = [*arguments[1:], *Path(arguments[0]).read_text().splitlines()]
    _command("flwr.supernode.cli", "flower_supernode", ["flower-supernode", *words])


def run_superexec(arguments: Sequence[str]) -> None:
    """Run Flower's SuperExec with forks."""
    ours, handler = logging.getLogger("fedgbo"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s: %(message)s"))  # as Flower's lines
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    command = SERVER if arguments[0] == "server" else CLIENT
    apps = None if arguments[0] in ("server", "-") else Path(arguments[0])
    host, _, port = arguments[arguments.index("--runtime-api-address") + 1].rpartition(":")
    while socket.socket().connect_ex((host, int(port))) != 0:  # quietly: the node's log is read for lost connections
        time.sleep(0.1)
    _replace("flwr.supercore.superexec.run_superexec", get_executor=lambda *args, **more: ForkExecutor(command, apps))
    _command("flwr.supercore.cli", "flower_superexec", ["flower-superexec", *arguments[1:]])


def _replace(module: str, **parts: Any) -> None:
    """Replace attributes of a module of Flower's."""
    found = importlib.import_module(module)
    for name, part in parts.items():
        if not hasattr(found, name):
            raise SystemExit(f"this version of Flower has no {module}.{name}; install flwr 1.41 or 1.42")
        setattr(found, name, part)


def _command(module: str, name: str, words: list[str]) -> NoReturn:
    """Run a command of Flower's in this process, and end the process with it."""
    sys.argv = words
    _end_with(getattr(importlib.import_module(module), name))


def _end_with(run: Callable[[], None]) -> NoReturn:
    """Call a function in this process, and end the process with it, whatever threads there are."""
    from flwr.supercore.logger import update_console_handler

    code: object = 1
    update_console_handler(timestamps=True, colored=False)
    try:
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        LOG.exception("%s ended", sys.argv[0])
    finally:
        with suppress(OSError):  # the log's disk may be full
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


class _TaskDone(BaseException):
    """Ends a task of a node's app, and not its process."""


def do_tasks(channel: Connection, command: str, parent: int, apps: Path | None) -> None:
    """Do the tasks that come through a channel, until it is closed or the parent ends."""
    from fedgbo.federation.apps import Apps, guard_client_apps
    from fedgbo.federation.processes import end_with

    if (end_with_us := end_with(parent)) is not None:
        end_with_us()  # a fork does not inherit its parent's setting
    guard_client_apps(None if apps is None else Apps(apps), _replace, _TaskDone)
    run = getattr(importlib.import_module(COMMANDS[command][0]), command.replace("-", "_"))
    while True:
        try:
            sys.argv = channel.recv()
        except EOFError:
            return
        with suppress(_TaskDone):
            run()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # Flower's handlers are those of the task
        channel.send(True)


class ForkExecutor:
    """Flower's interface to processes: a fork of this one for each node's app, or for each server's task."""

    def __init__(self, command: str, apps: Path | None = None) -> None:
        self._command, self._apps, self._forks = command, apps, list[Any]()

    def get_eligible_capacity(self, supported_task_types: set[Any], **more: Any) -> tuple[set[Any], set[str]]:
        """Take tasks of one type, at any time."""
        return {kind for kind in supported_task_types if str(kind) == self._command}, set()

    def launch(self, spec: Any) -> Any:
        """Give a task to the fork of its app; start one if there is none, and let those of other apps end."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        if str(spec.task_type) != self._command:  # whoever sent it
            return LaunchResult.failed(f"tasks of type {spec.task_type} are not done here")
        self.reconcile()
        fork = None
        for one in self._forks if self._command == CLIENT else ():
            if one.app == spec.fab_hash and not one.channel.closed:
                fork = one
            elif one.tasks:
                one.make_room()
            else:
                one.channel.close()
        try:
            (fork or self._fork(spec)).give(spec)
        except OSError:  # it ended just now
            self._fork(spec).give(spec)
        return LaunchResult.accepted()

    def _fork(self, spec: Any) -> Any:
        from fedgbo.federation.apps import Fork

        parent, command = os.getpid(), str(spec.task_type)
        for module in COMMANDS[command]:
            importlib.import_module(module)  # here and not in each fork, where torch would take seconds
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for channel in (ours, *(fork.channel for fork in self._forks)):
                channel.close()  # so that each fork sees the end of its own
            if sys.platform.startswith("linux"):
                ctypes.CDLL(None).prctl(15, command.encode())  # PR_SET_NAME: the name that `ps -o comm` shows
            _end_with(lambda: do_tasks(theirs, command, parent, self._apps))
        theirs.close()
        self._forks.append(Fork(pid, command, spec.fab_hash, ours))
        return self._forks[-1]

    def reconcile(self) -> None:
        """Note what is done, and reap forks that have ended. If one was killed at a client app's task, end with it.

        Flower then learns at once that the task failed.
        """
        for fork in list(self._forks):
            fork.hear()
            ended, status = os.waitpid(fork.pid, os.WNOHANG)
            if not ended:
                continue
            fork.channel.close()
            self._forks.remove(fork)
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            if number not in (0, signal.SIGTERM, signal.SIGINT):
                LOG.error("an app's process (%s) was killed by %s", fork.command, signal.Signals(number).name)
                if fork.command == CLIENT and fork.tasks:
                    os._exit(1)
            for waiting in fork.tasks[1:]:
                self.launch(waiting)

    def close(self) -> None:
        """Do nothing: forks end with this process."""


if __name__ == "__main__":
    {"superlink": run_superlink, "supernode": run_supernode, "superexec": run_superexec}[sys.argv[1]](sys.argv[2:])
