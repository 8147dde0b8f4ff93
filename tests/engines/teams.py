"""Teams of real processes on this machine, started as torchrun starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import fedgbo

ROOT = Path(__file__).parents[2]


def environment(**more):
    """Return this process's environment, with this very package and these tests importable."""
    path = os.pathsep.join([str(Path(fedgbo.__file__).parents[1]), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, **more}


def start(size, *command, cwd, **more):
    """Start `python *command` as every rank of a team."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    place["LOCAL_WORLD_SIZE"] = str(size)
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=cwd,
            env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank), **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(processes, seconds=240):
    """Wait for all; return (exit code, stdout, stderr) of each. None outlives this call."""
    try:
        texts = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]
