"""Hands its arguments to the process that waits at a pipe: hand_over.py PIPE COMMAND [ARGUMENT]...

Runs for every message, so it loads nothing but what Python has loaded already. See warm.py.
"""

import json
import os
import sys


def hand_over(pipe: str, command: str, arguments: list[str]) -> None:
    """Write the arguments into the pipe or, if nobody waits there, run the command itself."""
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, json.dumps(arguments).encode() + b"\n")
    except OSError:
        os.execv(command, [command, *arguments])


if __name__ == "__main__":
    hand_over(sys.argv[1], sys.argv[2], sys.argv[3:])
