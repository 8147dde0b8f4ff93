"""Flower's processes, run by this module: the only place that replaces parts of Flower.

    python -m fedgbo.federation.launch superlink SECRET [OPTION]...
    python -m fedgbo.federation.launch supernode [OPTION]...
    python -m fedgbo.federation.launch superexec APPS [OPTION]...

Each runs Flower's command of that name, with Flower's options, after a change for which Flower has no option:

superlink   asks for the content of the file SECRET, as a bearer token, on the Control API. Flower's open edition lets
            everybody use that API, who then runs code on the server and on all nodes.
supernode   ends when its loop ends. In Flower the process stays, without asking for work.
superexec   forks for each task. Flower starts a process, which loads torch, Flower and fedgbo for about three seconds,
            and has the task's token on its command line, where every user of the machine can read it. Besides, an app
            runs only if the folder APPS allows it (see `apps.py`; `-` allows all), and the text of its exceptions,
            which may quote a node's data, stays in the node's log.

What is replaced here is private to Flower. Tests of real federations fail if a new version of Flower moves it.
"""

import ctypes
import hmac
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgbo.federation.apps import AppNotAllowed, Apps
from fedgbo.federation.processes import end_with

LOG = logging.getLogger("flwr")
COMMANDS = {"flwr-serverapp": "flwr.superlink.cli", "flwr-clientapp": "flwr.supernode.cli"}  # that tasks need
_PR_SET_NAME = 15


def run_superlink(arguments: Sequence[str]) -> None:
    """Run Flower's SuperLink with a secret on its Control API."""
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    secret = Path(arguments[0]).read_bytes().strip()

    class SecretPlugin(NoOpControlAuthnPlugin):
        """Lets those callers through that know the secret."""

        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
            tokens = [token if isinstance(token, bytes) else token.encode() for _, token in metadata]
            known = any(hmac.compare_digest(token, secret) for token in tokens)
            return super().validate_tokens_in_metadata(metadata) if known else (False, None)

    _replace("flwr.superlink.cli.flower_superlink", load_control_authn_plugin=SecretPlugin)
    _command("flwr.superlink.cli", "flower_superlink", ["flower-superlink", *arguments[1:]])


def run_supernode(arguments: Sequence[str]) -> None:
    """Run Flower's SuperNode until its loop ends."""
    _command("flwr.supernode.cli", "flower_supernode", ["flower-supernode", *arguments])


def run_superexec(arguments: Sequence[str]) -> None:
    """Run Flower's SuperExec with forks."""
    import flwr.superlink.cli
    import flwr.supernode.cli  # noqa: F401

    import fedgbo.flower  # noqa: F401 - loaded once, for all forks

    ours, handler = logging.getLogger("fedgbo"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s: %(message)s"))  # as Flower's lines
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    _guard_client_apps(None if arguments[0] == "-" else Apps(Path(arguments[0])))
    _replace("flwr.supercore.superexec.run_superexec", get_executor=lambda *args, **more: ForkExecutor())
    _command("flwr.supercore.cli", "flower_superexec", ["flower-superexec", *arguments[1:]])


def _replace(module: str, **parts: Any) -> None:
    """Replace attributes of a module of Flower's."""
    found = importlib.import_module(module)
    for name, part in parts.items():
        if not hasattr(found, name):
            raise SystemExit(f"this version of Flower has no {module}.{name}; install flwr 1.41 or 1.42")
        setattr(found, name, part)


def _command(module: str, name: str, words: list[str]) -> None:
    """Run a command of Flower's in this process, and end the process with it, whatever threads there are."""
    from flwr.supercore.logger import update_console_handler

    code: object = 1
    sys.argv = words
    update_console_handler(timestamps=True, colored=False)
    try:
        getattr(importlib.import_module(module), name)()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        LOG.exception("%s ended", words[0])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


class ForkExecutor:
    """Flower's interface to processes for tasks: each task runs in a fork of this process."""

    def __init__(self) -> None:
        self._forks: dict[int, str] = {}

    def get_eligible_capacity(self, supported_task_types: set[Any], **more: Any) -> tuple[set[Any], set[str]]:
        """Take the tasks of server and client apps, at any time; no agents, models or connectors."""
        return {kind for kind in supported_task_types if str(kind) in COMMANDS}, set()

    def launch(self, spec: Any) -> Any:
        """Start a fork for a task."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        parent, command = os.getpid(), str(spec.task_type)
        fork = os.fork()
        if fork == 0:
            if (end_with_us := end_with(parent)) is not None:
                end_with_us()  # a fork does not inherit its parent's setting
            if sys.platform.startswith("linux"):
                ctypes.CDLL(None).prctl(_PR_SET_NAME, command.encode())  # the name that `ps -o comm` shows
            words = [command, "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
            words += ["--insecure"] if spec.insecure else ["--root-certificates", str(spec.root_certificates_path)]
            _command(COMMANDS[command], command.replace("-", "_"), [*words, "--parent-pid", str(parent)])
        self._forks[fork] = command
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap forks that have ended. If a client app's was killed, end: Flower then learns of it at once."""
        for fork, command in list(self._forks.items()):
            ended, status = os.waitpid(fork, os.WNOHANG)
            if not ended:
                continue
            del self._forks[fork]
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in (signal.SIGTERM, signal.SIGINT):
                LOG.error("an app's process (%s) was killed by %s", command, signal.Signals(os.WTERMSIG(status)).name)
                if command == "flwr-clientapp":
                    os._exit(1)

    def close(self) -> None:
        """Do nothing: forks end with this process."""


def _guard_client_apps(apps: Apps | None) -> None:
    """Let client apps run only if they are allowed, and keep the text of their exceptions on this node."""
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    pull, install, error = module.pull_task_input, module.install_from_fab, module.Error
    sent: dict[str, Any] = {}
    refusals: list[str] = []

    def pull_task_input(runtime: Any) -> Any:
        message, context, run, fab = pull(runtime)
        sent.update(hash=fab.hash_str, about={"run": run.run_id, "app": run.fab_id, **context.run_config})
        return message, context, run, fab

    def install_from_fab(content: bytes, **more: Any) -> Any:
        try:
            if apps is not None:
                apps.check(content, sent["hash"], sent["about"])
        except AppNotAllowed as refusal:
            refusals.append(str(refusal))
            raise
        return install(content, **more)

    def without_text(code: int, reason: str) -> Any:
        return error(code=code, reason="".join(refusals) or "the node's log says more")

    _replace(module.__name__, pull_task_input=pull_task_input, install_from_fab=install_from_fab, Error=without_text)


RUN: dict[str, Callable[[Sequence[str]], None]] = {
    "superlink": run_superlink,
    "supernode": run_supernode,
    "superexec": run_superexec,
}

if __name__ == "__main__":
    RUN[sys.argv[1]](sys.argv[2:])
