"""Writes its arguments into a pipe for the process that reads it: hand_over.py PIPE COMMAND [ARGUMENT]...

Runs for every message, so it imports only modules that Python itself has loaded or that load fast. See warm.py.
"""

import json
import os
import sys


def hand_over(pipe: str, command: str, arguments: list[str]) -> None:
    """Write the arguments into the pipe or, if no process reads it, run the command itself."""
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, json.dumps(arguments).encode() + b"\n")
    except OSError:
        os.execv(command, [command, *arguments])


if __name__ == "__main__":
    hand_over(sys.argv[1], sys.argv[2], sys.argv[3:])
