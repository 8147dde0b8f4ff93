"""A process at each node that has everything loaded, and forks for each message.

Flower starts a process, `flwr-clientapp`, for every message, and most of its time goes into loading torch, Flower and
fedgbo: about three seconds of a core, each round, at each node. So a node's PATH begins with a command of that name
which passes its arguments to a loaded process (`python -m fedgbo.federation.warm PIPE`); a fork of it does the work of
Flower's command. If no process reads the pipe, Flower's own command runs. FEDGBO_WARM=0 turns this off.
"""

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgbo.federation.credentials import PRIVATE_FILE, PRIVATE_FOLDER, private_folder
from fedgbo.federation.processes import Process, end_with, flower_command

COMMAND = "flwr-clientapp"
PIPE = "messages"
_HAND_OVER = Path(__file__).with_name("hand_over.py")


def warm_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Write our `flwr-clientapp` into `folder`; return the environment that finds it before Flower's."""
    pipe = private_folder(folder) / PIPE
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, PRIVATE_FILE)
    words = [sys.executable, "-IS", str(_HAND_OVER), str(pipe), flower_command(COMMAND, environment)]
    script = folder / COMMAND
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    script.chmod(PRIVATE_FOLDER)
    return {**environment, "PATH": os.pathsep.join([str(folder), environment["PATH"]])}


def start_warm(folder: Path, environment: Mapping[str, str], log: Path) -> Process:
    """Start the process that reads the pipe in `folder`."""
    command = [sys.executable, "-m", "fedgbo.federation.warm", str(folder / PIPE)]
    return Process.start("the loaded process", command, environment, log)


def wait_at(pipe: Path) -> None:
    """Load everything, then fork for each line of arguments from the pipe."""
    handle = os.open(pipe, os.O_RDWR)  # before loading, so that early messages wait; read-write, so that it never ends
    import flwr.supernode.cli  # noqa: F401

    import fedgbo.flower  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap forks: Flower learns of their end by the reply
    end_with_us = end_with(os.getpid())
    with os.fdopen(handle, encoding="utf-8") as lines:
        for line in lines:
            arguments = json.loads(line)
            if os.fork() == 0:
                if end_with_us is not None:
                    end_with_us()  # a fork does not inherit its parent's setting
                os.close(handle)
                _answer(arguments)


def _answer(arguments: Sequence[str]) -> None:
    """Run Flower's command in the fork, and exit."""
    from flwr.supernode.cli import flwr_clientapp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = [COMMAND, *arguments]
    code: object = 1
    try:
        flwr_clientapp()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    wait_at(Path(sys.argv[1]))
