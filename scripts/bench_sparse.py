"""Local client-steps per second on Sent140's shapes, all in one run and interleaved.

    python scripts/bench_sparse.py [--seconds 2] [--repeats 5]

plain PyTorch    the textbook loop: nn.Linear on dense vectors of 5000 numbers, made batch by batch, and torch's SGD
SerialEngine     ours, client by client
SparseEngine     ours, a cohort in one compiled call

Each row is the median over repeats. The ratio is to the plain loop of the same repeat, to the faster of one thread and
all cores: on a machine that is not idle, threads that wait for each other would make the plain loop look many times
slower than it is. Ours are whole rounds through `fedgbo.run`'s own loop: sampling, batches, training, server, ledger.
The last lines are runs of 5000 rounds with an evaluation every 50.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from fedgbo.engines.serial import SerialEngine
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines.plain import minibatches
from fedgbo.runs import loop
from fedgbo.runs.round import sample
from fedgbo.tasks.sent140 import sent140_synthetic
from fedgbo.tasks.task import Task

STEPS, FEATURES, CLASSES = 10, 5000, 2
ALGORITHMS = {
    "FedAvg": fedgbo.FedAvg(fedgbo.SGD(1.0)),
    "FedGBO SGDm": fedgbo.FedGBO(fedgbo.SGDm(1.0, 0.9)),
    "FedGBO Adam": fedgbo.FedGBO(fedgbo.Adam(0.1, 0.9)),
    "Mimelite Adam": fedgbo.Mimelite(fedgbo.Adam(0.1, 0.9)),
}


def plain_round(task: Task, model: nn.Linear, t: int) -> int:
    """FedAvg as in a textbook; return the number of local steps."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    cohort = sample(task.data.clients, task.cohort_size, 0, t)
    for client in cohort:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
        walk = minibatches(task.data.size(client), task.batch_size, 0, t, client)
        for _ in range(STEPS):
            pairs, labels = task.data.train.batch(int(task.data.offsets[client]) + next(walk))
            dense = torch.zeros(len(labels), FEATURES).scatter_add_(1, pairs[..., 0].long(), pairs[..., 1])
            optimiser.zero_grad()
            functional.cross_entropy(model(dense), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        for name, value in model.state_dict().items():
            total[name] += value
    model.load_state_dict({name: value / len(cohort) for name, value in total.items()})
    return len(cohort) * STEPS


def plain_rate(task: Task, threads: int, seconds: float) -> float:
    """Client-steps per second of the textbook loop, with so many threads for each operation."""
    torch.set_num_threads(threads)
    model, done, t = nn.Linear(FEATURES, CLASSES), 0, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        done, t = done + plain_round(task, model, t), t + 1
    return done / (time.perf_counter() - began)


def our_rate(task: Task, algorithm: fedgbo.FederatedAlgorithm, seconds: float) -> float:
    """Client-steps per second of whole rounds of our loop; evaluations, before and after, are not counted."""
    stamps: list[float] = []

    def stop(progress: fedgbo.Progress) -> bool:
        stamps.append(time.perf_counter())
        return stamps[-1] - stamps[0] > seconds

    small = replace(task, data=replace(task.data, test=type(task.data.test)(*one_row(task.data.test))))
    fedgbo.run(small, algorithm, rounds=10**9, local_steps=STEPS, eval_every=10**9, callbacks=[stop])
    return (len(stamps) - 1) * task.cohort_size * STEPS / (stamps[-1] - stamps[0])


def one_row(samples: object) -> tuple[np.ndarray, ...]:
    """The first test sample alone, since rounds are measured and not evaluations."""
    end = samples.indptr[1]
    return samples.indptr[:2], samples.indices[:end], samples.counts[:end], samples.labels[:1]


def serial_rate(task: Task, algorithm: fedgbo.FederatedAlgorithm, seconds: float) -> float:
    """The same with the plain engine."""
    chosen, loop.engine_for = loop.engine_for, SerialEngine
    try:
        return our_rate(task, algorithm, seconds)
    finally:
        loop.engine_for = chosen


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    task = sent140_synthetic()
    began = time.perf_counter()
    fedgbo.run(task, ALGORITHMS["FedAvg"], rounds=1)
    print(f"first round, compilation or its cache included: {time.perf_counter() - began:.1f} s")
    print(f"{task.data.clients} clients, M = {task.cohort_size}, B = {task.batch_size}, K = {STEPS}")

    cores, seconds, fedavg = os.cpu_count() or 1, options.seconds, ALGORITHMS["FedAvg"]
    measured: dict[str, Callable[[], float]] = {
        f"plain PyTorch, {cores} threads": lambda: plain_rate(task, cores, seconds),
        "plain PyTorch, 1 thread": lambda: plain_rate(task, 1, seconds),
        "SerialEngine FedAvg": lambda: serial_rate(task, fedavg, seconds),
    }
    for name, algorithm in ALGORITHMS.items():
        measured[f"SparseEngine {name}"] = lambda algorithm=algorithm: our_rate(task, algorithm, seconds)
    rates: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(options.repeats):
        for name, measure in measured.items():
            rates[name].append(measure())
    plain = [max(pair) for pair in zip(*list(rates.values())[:2], strict=True)]
    print(f"{'':28} {'steps/s':>10} {'best':>10} {'x plain':>9}")
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, plain, strict=True))
        print(f"{name:28} {statistics.median(found):10,.0f} {max(found):10,.0f} {ratio:9.1f}")

    for name in ("FedAvg", "FedGBO SGDm"):
        began = time.perf_counter()
        result = fedgbo.run(task, ALGORITHMS[name], rounds=5000, local_steps=STEPS, eval_every=50)
        took, best = time.perf_counter() - began, result.best.accuracy
        print(f"{name}, 5000 rounds, {len(result.history)} evaluations: {took:.1f} s, best accuracy {best:.4f}")


if __name__ == "__main__":
    main()
