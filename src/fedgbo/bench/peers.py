"""Simulations of other frameworks on our tasks: the same model, data, M, B and K, plain SGD in the client, FedAvg.

Each runs as its documentation says: Flower through Ray with one worker a core, pfl under torchrun with one process a
core, one torch thread in each, BlazeFL with a pool of threads, FedJAX with the better one of its backends. The
frameworks are not dependencies: each may live in an environment of its own, whose Python runs it. Their telemetry is
off.
"""

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgbo.bench.plain import PlainLoop
from fedgbo.bench.race import BenchError
from fedgbo.bench.report import WANTED, contender
from fedgbo.core import ConfigError, MissingExtraError, unknown
from fedgbo.engines.batches import Batches
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
    steps_per_second: float  # client-steps, all clients together
    note: str


def measure_peer(framework: str, task: str, seconds: float, python: str = sys.executable) -> Peer:
    """Train in another framework, in processes of its own, for about `seconds` after a warm-up round.

    `python` is the Python of an environment that has the framework and, but for FedJAX, what fedgbo needs.
    """
    check_peer(framework, python)
    if task not in WANTED:
        raise ConfigError(unknown("task", task, WANTED))
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


def work(arguments: list[str]) -> None:
    """Measure in this process; the arguments are the framework, the task, seconds and the file for the answer."""
    framework, task, seconds, answer = arguments
    torch.set_num_threads(1)
    rounds, took = {"flower": _flower, "pfl": _pfl, "blazefl": _blazefl}[framework](task, float(seconds))
    steps = rounds * _loop(task).task.cohort_size * _loop(task).local_steps
    if os.environ.get("RANK", "0") == "0":  # torchrun's: one of pfl's processes answers
        Path(answer).write_text(json.dumps({"rounds": rounds, "steps": steps, "seconds": took}))


def _command(framework: str, task: str, seconds: float, answer: Path, python: str) -> list[str]:
    """Return the command that measures: `work`, or the program for FedJAX with its files."""
    if framework == "fedjax":
        settings, arrays = answer.with_name("settings.json"), answer.with_name("arrays.npz")
        _write_stack(task, seconds, settings, arrays)
        return [python, str(Path(__file__).with_name("fedjax_peer.py")), str(settings), str(arrays), str(answer)]
    program = "import sys; from fedgbo.bench.peers import work; work(sys.argv[1:])"
    command = [python, "-c", program, framework, task, str(seconds), str(answer)]
    if framework == "pfl":
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores()}", "--no-python"]
        command = [python, *torchrun, *command]
    return command


def _write_stack(task: str, seconds: float, settings: Path, arrays: Path) -> None:
    """Write a model that is a stack of usual layers, and its data, for FedJAX."""
    loop = _loop(task)
    data, layers, weights = loop.task.data, [], dict[str, Any]()
    for i, layer in enumerate(loop.model if isinstance(loop.model, nn.Sequential) else [loop.model]):
        about: dict[str, Any] = {"kind": type(layer).__name__}
        if isinstance(layer, nn.Conv2d):
            about |= {"stride": layer.stride[0], "padding": layer.padding[0]}
        elif isinstance(layer, nn.MaxPool2d):
            about |= {"size": layer.kernel_size}
        elif not isinstance(layer, nn.Linear | nn.Flatten | nn.ReLU) or loop.features:
            raise BenchError(f"the bench has {task} not written for fedjax: it takes stacks of usual layers")
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


@cache
def _loop(task: str) -> PlainLoop:
    """Return the plain loop of a task; one for each process, because reading the data takes long."""
    who = contender(task, "plain", "fedavg")
    return PlainLoop(who.build_task(), who.local_steps, who.lr)


def _blazefl(task: str, seconds: float) -> tuple[int, float]:
    """Return rounds and seconds of BlazeFL: a pool with a thread for each core, which shares memory."""
    from blazefl.core import ThreadPoolClientTrainer  # type: ignore[import-not-found]

    loop, free = _loop(task), SimpleQueue[PlainLoop]()
    for _ in range(cores()):
        free.put(copy.deepcopy(loop))

    class Trainer(ThreadPoolClientTrainer[Any, Any]):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count = cores(), "cpu", 0
            self.cache: list[Any] = []
            self.stop_event, self.t = threading.Event(), 0

        def progress_fn(self, it: list[Any]) -> list[Any]:
            return it

        def worker(self, cid: int, device: str, payload: Any, stop_event: Any) -> Any:
            own = free.get()
            own.model.load_state_dict(payload)
            own._train(cid, self.t)
            trained = {name: value.clone() for name, value in own.model.state_dict().items()}
            free.put(own)
            return trained

        def uplink_package(self) -> list[Any]:
            package, self.cache = self.cache, []
            return package

    trainer, began, cohort = Trainer(), 0.0, loop.task.cohort_size
    for t in count():
        if t == 1:
            began = time.perf_counter()
        clients = np.random.default_rng(t).choice(loop.task.data.clients, cohort, replace=False).tolist()
        trainer.t = t
        trainer.local_process(copy.deepcopy(loop.model.state_dict()), clients)
        uploads = trainer.uplink_package()
        if len(uploads) != cohort:
            raise BenchError(f"blazefl returned {len(uploads)} of {cohort} clients")
        means = {name: sum(one[name] for one in uploads) / cohort for name in uploads[0]}
        loop.model.load_state_dict(means)
        if t > 0 and (took := time.perf_counter() - began) >= seconds:
            return t, took
    raise AssertionError


def _flower(task: str, seconds: float) -> tuple[int, float]:
    """Return rounds and seconds of Flower: M simulated nodes of equal weight, in each round for other clients.

    With the usual node for each client, Flower was over four times slower on Sent140, which has 21,876 of them. A
    comparison is fair only if each framework runs near its best.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    data, cohort = _loop(task).task.data, _loop(task).task.cohort_size
    client, server = ClientApp(), ServerApp()
    found: list[tuple[int, float]] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        loop = _loop(task)
        loop.model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        config: dict[str, Any] = dict(message.content.config_records["config"])
        loop._train(config["cohort"][int(context.node_config["partition-id"])], config["t"])
        metrics = MetricRecord({"weight": 1, "steps": loop.local_steps})
        content = RecordDict({"arrays": ArrayRecord(loop.model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    def total(replies: list[RecordDict], weight: str) -> MetricRecord:
        steps: list[Any] = [reply.metric_records["metrics"]["steps"] for reply in replies]
        return MetricRecord({"steps": sum(steps)})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=cohort,
            weighted_by_key="weight",
            train_metrics_aggr_fn=total,
        )
        arrays = ArrayRecord(_loop(task).model.state_dict())
        began = 0.0
        for t in count():
            if t == 1:  # after the warm-up round
                began = time.perf_counter()
            clients = np.random.default_rng(t).choice(data.clients, cohort, replace=False).tolist()
            config = ConfigRecord({"t": t, "cohort": clients})
            result = strategy.start(grid, arrays, num_rounds=1, train_config=config)
            arrays = result.arrays
            steps = result.train_metrics_clientapp[1]["steps"]
            if steps != cohort * (wanted := _loop(task).local_steps):
                raise BenchError(f"flower's clients took {steps} steps in a round, not {cohort * wanted}")
            if t > 0 and (took := time.perf_counter() - began) >= seconds:
                found.append((t, took))
                return

    backend: Any = {"init_args": {"num_cpus": cores()}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=cohort, backend_config=backend)
    return found[0]


def _pfl(task: str, seconds: float) -> tuple[int, float]:
    """Return rounds and seconds of pfl: a user for each client; the processes share a cohort, and all-reduce once."""
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.internal.ops import pytorch_ops  # type: ignore[import-not-found]
    from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    np.random.seed(0)  # the same in each process, or they would not share one cohort
    torch.manual_seed(0)
    loop, visits = _loop(task), count()

    class User(Dataset):  # type: ignore[misc]
        """A client's K batches, in an order that changes from visit to visit."""

        def __init__(self, client: int) -> None:
            super().__init__(raw_data=(), user_id=str(client))
            self.client, self.visit = client, next(visits)

        def __len__(self) -> int:
            return int(loop.task.data.size(self.client))

        def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
            first, rng = int(loop.task.data.offsets[self.client]), np.random.default_rng(self.visit)
            batches = Batches(len(self), loop.task.batch_size, 0, self.visit, self.client)
            for _ in range(loop.local_steps):
                inputs, targets = loop.task.data.train.batch(first + batches.take(), rng)
                yield [loop._dense(inputs), targets.long()]

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        """Starts after the warm-up round, and stops all processes at once when the time is over."""

        began, took, rounds = 0.0, 0.0, 0

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if central_iteration == 0:
                self.began = time.perf_counter()
                return False, Metrics()
            self.rounds, self.took = central_iteration, time.perf_counter() - self.began
            [votes] = pytorch_ops.distributed.all_reduce([torch.tensor([float(self.took >= seconds)])])
            return bool(votes.item() > 0), Metrics()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = loop.task.loss(loop.model(inputs), targets)
        return value

    def metrics(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(loss(inputs, targets)) * len(targets), len(targets))}

    module: Any = loop.model
    module.loss, module.metrics = loss, metrics  # as pfl wants them
    users = FederatedDataset(User, get_user_sampler("random", list(range(loop.task.data.clients))))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=sys.maxsize,
            evaluation_frequency=sys.maxsize,  # only in the first round
            train_cohort_size=loop.task.cohort_size,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=loop.local_steps,
            local_learning_rate=loop.lr,
            local_batch_size=loop.task.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=loop.task.batch_size),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return clock.rounds, clock.took
