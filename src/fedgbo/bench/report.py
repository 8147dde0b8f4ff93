"""The findings of the bench for each of the paper's tasks and of the models that people use, and the wanted ratios."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from fedgbo.bench.models import MODELS
from fedgbo.bench.race import Contender, Lap, race
from fedgbo.costs.flops import forward_macs

LEARNING_RATES = {"cifar100": 0.01, "femnist": 0.01, "shakespeare": 0.1, "sent140": 1.0}
MODEL_RATE = 0.01  # learning rate of the models that people use, whose data are random
WANTED = {"cifar100": 2.3, "femnist": 2.3, "shakespeare": 3.4, "sent140": 50.0} | {  # times the plain loop
    name: model.wanted for name, model in MODELS.items()
}
SLOWER, SERVER = 0.08, 0.08  # FedGBO at most this much slower than FedAvg; the server's part of a round
ALGORITHMS: tuple[Literal["fedavg", "fedgbo"], ...] = ("fedavg", "fedgbo")
KINDS: tuple[Literal["plain", "ours"], ...] = ("plain", "ours")


@dataclass(frozen=True)
class Row:
    """One algorithm on one task: medians over laps, and ratios of laps that followed each other."""

    task: str
    algorithm: str
    steps_per_second: float  # local steps, all clients together
    plain_steps_per_second: float
    plain_threads: int  # of each of its operations: one, or all cores where that was faster
    ratio: float  # ours to the plain loop of the same algorithm
    limit: float | None  # share of the machine's own speed in a matrix product; None where products are not the work
    server: float  # share of a round that is not the clients'
    peak_bytes: int
    plain_peak_bytes: int
    to_fedavg: float  # our steps per second to those of our FedAvg


def measure(task: str, seconds: float, repeats: int, device: str = "cpu") -> tuple[list[Row], float]:
    """Measure the matrix product, the plain loop and our engine in turns on one task; return rows and FLOP/s."""
    contenders = [Contender("product", device=device)]
    for algorithm in ALGORITHMS:
        contenders += [replace(contender(task, kind, algorithm), device=device) for kind in KINDS]
    product, *laps = race(contenders, seconds, repeats)
    built = contenders[1].build_task()
    inputs, _ = built.data.train.batch(np.arange(2))
    flops = 6.0 * forward_macs(built.make_model(), inputs) * (built.batch_size or 1)  # of a local step, as in the paper
    rows = []
    for i, algorithm in enumerate(ALGORITHMS):
        plain, ours = laps[2 * i : 2 * i + 2]
        rows.append(
            Row(
                task=task,
                algorithm=algorithm,
                steps_per_second=_rate(ours),
                plain_steps_per_second=_rate(plain),
                plain_threads=plain[-1].threads,
                ratio=_ratio(ours, plain),
                limit=None if task == "sent140" else flops * _ratio(ours, product),
                server=median(lap.server_seconds / lap.seconds for lap in ours),
                peak_bytes=max(lap.peak_bytes for lap in ours),
                plain_peak_bytes=max(lap.peak_bytes for lap in plain),
                to_fedavg=_ratio(ours, laps[1]),
            )
        )
    return rows, _rate(product)


def contender(task: str, kind: Literal["ours", "plain"], algorithm: Literal["fedavg", "fedgbo"]) -> Contender:
    """Return a contender on one of the paper's tasks, with its stand-in data, or on a model that people use."""
    if task not in MODELS:
        return Contender(kind, f"{task}-synthetic", algorithm, LEARNING_RATES[task])
    model = MODELS[task]
    return Contender(kind, task, algorithm, MODEL_RATE, model.local_steps, builder=model.task)


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """Return a message for each wanted ratio that was missed."""
    found = []
    for row in rows:
        who = f"{row.algorithm} on {row.task}"
        if row.ratio < WANTED[row.task]:
            found.append(f"{who}: {row.ratio:.2f} times the plain loop, target {WANTED[row.task]}")
        if row.to_fedavg < 1 - SLOWER:
            found.append(f"{who}: {1 - row.to_fedavg:.0%} slower than FedAvg, target at most {SLOWER:.0%}")
        if row.server > SERVER:
            found.append(f"{who}: the server takes {row.server:.1%} of a round, target at most {SERVER:.0%}")
    return found


def _rate(laps: Sequence[Lap]) -> float:
    return median(lap.rate for lap in laps)


def _ratio(ours: Sequence[Lap], theirs: Sequence[Lap]) -> float:
    return median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
