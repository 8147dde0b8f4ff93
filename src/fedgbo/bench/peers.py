"""Simulations of other frameworks on our tasks: the same model, data, M, B and K, plain SGD in the client, FedAvg.

Each runs as its documentation says: Flower through Ray with one worker a core, pfl under torchrun with one process a
core, one torch thread in each, BlazeFL with a pool of threads, FedJAX with the better one of its backends. The
frameworks are not dependencies: each may live in an environment of its own, whose Python runs it. Their telemetry is
off.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedgbo.bench.peer_loops import loop_of
from fedgbo.bench.race import BenchError
from fedgbo.core import ConfigError, MissingExtraError, unknown
from fedgbo.engines.device import cores

PEERS = {"flower": "flwr", "pfl": "pfl", "fedjax": "fedjax", "blazefl": "blazefl"}  # frameworks and their modules
XLA = f"--xla_force_host_platform_device_count={cores()}"  # for FedJAX's backend with several devices
PATIENCE = 300.0  # seconds that starting, a warm-up round and stopping may take
_INSTALL = {
    "flower": 'pip install "flwr[simulation]"', "pfl": 'pip install "pfl[pytorch]"', "fedjax": "pip install fedjax",
    "blazefl": "pip install blazefl",
}  # fmt: skip
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "JAX_PLATFORMS": "cpu",
}


@dataclass(frozen=True)
class Peer:
    """How fast another framework trains a task."""

    framework: str
    task: str
    steps_per_second: float  # local steps, all clients together
    note: str


def measure_peer(framework: str, task: str, seconds: float, python: str = sys.executable) -> Peer:
    """Train in another framework, in processes of its own, for about `seconds` after a warm-up round.

    `python` is the Python of an environment that has the framework and, but for FedJAX, what fedgbo needs;
    call `check_peer` first.
    """
    with tempfile.TemporaryDirectory(prefix="fedgbo-peer-") as folder:
        answer = Path(folder) / "answer.json"
        _run(framework, _command(framework, task, seconds, answer, python), seconds, answer)
        return _read(framework, task, answer)


def check_peer(framework: str, python: str = sys.executable) -> None:
    """Raise unless the framework is known and installed in the environment of that Python."""
    if framework not in PEERS:
        raise ConfigError(unknown("framework", framework, PEERS))
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PEERS[framework]!r}) is None)"
    try:
        there = subprocess.run([python, "-c", look], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError as error:
        raise ConfigError(f"{python}, given for {framework}, cannot be run: {error.strerror}") from error
    if not there:
        where = "" if python == sys.executable else f" for {python}"
        raise MissingExtraError(
            f"{framework} is not installed{where}; install it with: {_INSTALL[framework]}, or name the Python of an "
            f"environment that has it: --against {framework}=PYTHON"
        )


def _command(framework: str, task: str, seconds: float, answer: Path, python: str) -> list[str]:
    """Return the command that measures: `work`, or the program for FedJAX with its files."""
    if framework == "fedjax":
        settings, arrays = answer.with_name("settings.json"), answer.with_name("arrays.npz")
        _write_stack(task, seconds, settings, arrays)
        return [python, str(Path(__file__).with_name("fedjax_peer.py")), str(settings), str(arrays), str(answer)]
    program = "import sys; from fedgbo.bench.peer_loops import work; work(sys.argv[1:])"
    command = [python, "-c", program, framework, task, str(seconds), str(answer)]
    if framework == "pfl":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores()}", "--no-python"]
        command = [python, *torchrun, *command]
    return command


def _write_stack(task: str, seconds: float, settings: Path, arrays: Path) -> None:
    """Write a model that is a stack of usual layers, and its data, for FedJAX."""
    loop = loop_of(task)
    data, layers, weights = loop.task.data, [], dict[str, Any]()
    for i, layer in enumerate(loop.model if isinstance(loop.model, nn.Sequential) else [loop.model]):
        about: dict[str, Any] = {"kind": type(layer).__name__}
        if isinstance(layer, nn.Conv2d):
            about |= {"stride": layer.stride[0], "padding": layer.padding[0]}
        elif isinstance(layer, nn.MaxPool2d):
            about |= {"size": layer.kernel_size}
        elif not isinstance(layer, nn.Linear | nn.Flatten | nn.ReLU) or loop.features:
            raise BenchError(f"the bench does not have {task} for fedjax, which supports only stacks of common layers")
        layers.append(about)
        weights |= {f"{i}.{name}": p.detach().numpy() for name, p in layer.named_parameters()}
    inputs, targets = data.train.batch(np.arange(len(data.train)))
    sizes = {"batch_size": loop.task.batch_size, "cohort": loop.task.cohort_size, "local_steps": loop.local_steps}
    settings.write_text(json.dumps({"layers": layers, "lr": loop.lr, "seconds": seconds, **sizes}))
    np.savez(arrays, inputs=inputs.numpy(), targets=targets.numpy(), offsets=data.offsets, **weights)


def _run(framework: str, command: list[str], seconds: float, answer: Path) -> None:
    """Run a command in a session of its own, whose processes end with it."""
    log, limit = answer.with_name("log"), seconds + PATIENCE
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_QUIET, "FLWR_HOME": str(answer.parent), "PYTHONPATH": _path(), "XLA_FLAGS": XLA},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{framework} did not end within {limit:.0f} s\n{_tail(log)}") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0 and not answer.exists():  # with an answer, it failed only while ending
        raise BenchError(f"{framework} failed with exit code {code}\n{_tail(log)}")


def _path() -> str:
    """Return PYTHONPATH with this package in it, for a Python that does not have it."""
    own = str(Path(__file__).parents[2])
    return os.pathsep.join([*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), own])


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _read(framework: str, task: str, answer: Path) -> Peer:
    if not answer.exists():
        raise BenchError(f"{framework} ended without an answer")
    found = json.loads(answer.read_text())
    note = f"({found['rounds']} rounds in {found['seconds']:.1f} s)"
    return Peer(framework, task, found["steps"] / found["seconds"], note)
