"""The programs of peers that train with torch: the plain loop's model and client under Flower, pfl and BlazeFL.

Imported only in the process that measures; see peers.py.
"""

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgbo.bench.plain import PlainLoop
from fedgbo.bench.race import BenchError
from fedgbo.bench.report import contender
from fedgbo.engines.batches import Batches
from fedgbo.engines.device import cores


def work(arguments: list[str]) -> None:
    """Measure in this process; the arguments are the framework, the task, seconds and the file for the answer."""
    framework, task, seconds, answer = arguments
    torch.set_num_threads(1)
    rounds, took = {"flower": _flower, "pfl": _pfl, "blazefl": _blazefl}[framework](task, float(seconds))
    steps = rounds * loop_of(task).task.cohort_size * loop_of(task).local_steps
    if os.environ.get("RANK", "0") == "0":  # torchrun's: one of pfl's processes answers
        Path(answer).write_text(json.dumps({"rounds": rounds, "steps": steps, "seconds": took}))


@cache
def loop_of(task: str) -> PlainLoop:
    """Return the plain loop of a task; one for each process, because reading the data takes long."""
    who = contender(task, "plain", "fedavg")
    return PlainLoop(who.build_task(), who.local_steps, who.lr)


def _blazefl(task: str, seconds: float) -> tuple[int, float]:
    """Return rounds and seconds of BlazeFL: a pool with a thread for each core, which shares memory."""
    from blazefl.core import ThreadPoolClientTrainer  # type: ignore[import-not-found]

    loop, free = loop_of(task), SimpleQueue[PlainLoop]()
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
            own.train(cid, self.t)
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

    data, cohort = loop_of(task).task.data, loop_of(task).task.cohort_size
    client, server = ClientApp(), ServerApp()
    found: list[tuple[int, float]] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        loop = loop_of(task)
        loop.model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        config: dict[str, Any] = dict(message.content.config_records["config"])
        loop.train(config["cohort"][int(context.node_config["partition-id"])], config["t"])
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
        arrays = ArrayRecord(loop_of(task).model.state_dict())
        began = 0.0
        for t in count():
            if t == 1:  # after the warm-up round
                began = time.perf_counter()
            clients = np.random.default_rng(t).choice(data.clients, cohort, replace=False).tolist()
            config = ConfigRecord({"t": t, "cohort": clients})
            result = strategy.start(grid, arrays, num_rounds=1, train_config=config)
            arrays = result.arrays
            steps = result.train_metrics_clientapp[1]["steps"]
            if steps != cohort * (wanted := loop_of(task).local_steps):
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
    loop, visits = loop_of(task), count()

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
                yield [loop.dense(inputs), targets.long()]

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
