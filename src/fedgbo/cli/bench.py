"""`fedgbo bench`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

from typer import Option

from fedgbo.bench.growth import Growth, growths
from fedgbo.bench.models import MODELS
from fedgbo.bench.peers import PEERS, measure_peer
from fedgbo.bench.report import LEARNING_RATES, Row, measure, shortfalls
from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json, print_whole, simple_table
from fedgbo.core import ConfigError, positive, whole
from fedgbo.engines.device import cores
from fedgbo.reports.table import quantity

SPEED = ("task", "algorithm", "client-steps/s", "plain loop", "ratio", "of the limit", "to FedAvg", "server",
         "peak memory", "plain loop's")  # fmt: skip
GROWTH = ("more of", "values", "ms a round", "grows like", "peak memory without data files")


def bench(
    tasks: Annotated[str, Option(help="Tasks and models, separated by commas.")] = ",".join((*LEARNING_RATES, *MODELS)),
    seconds: Annotated[float, Option(help="The length of each turn in seconds.")] = 2.0,
    repeats: Annotated[int, Option(help="The number of turns.")] = 7,
    growth: Annotated[bool, Option(help="Also measure how the cost grows.")] = True,
    against: Annotated[str, Option(help="Other frameworks to compare with, if installed: flower, pfl.")] = "",
    as_json: opt.Json = False,
) -> None:
    """Measure speed on this machine: fedgbo, a plain PyTorch loop and a matrix product, in turns.

    Run it on an otherwise idle machine. What counts is the ratio in one run, not the absolute figure.
    """
    names, peers = _chosen(tasks, (*LEARNING_RATES, *MODELS), "task"), _chosen(against, PEERS, "framework")
    positive("seconds", seconds)
    whole("repeats", repeats)
    rows, speeds, others = [], [], []
    for name in names:
        err.print(f"{name}: {3 + 2 * len({1, cores()})} contenders, {repeats} turns of {seconds:g} s each ...")
        found, speed = measure(name, seconds, repeats)
        rows += found
        speeds.append(speed)
        for peer in peers if name in LEARNING_RATES else ():  # which run the paper's tasks
            err.print(f"{name}: {peer} ...")
            others.append(measure_peer(peer, name, seconds * repeats))
    grown = []
    if growth:
        err.print("how cost grows ...")
        grown = list(growths(seconds / 2, max(3, repeats // 2)))
    missed = shortfalls(rows)
    if as_json:
        content = {
            "cores": cores(),
            "product_flops_per_second": speeds,
            "rows": [asdict(row) for row in rows],
            "growth": [asdict(axis) for axis in grown],
            "peers": [asdict(other) for other in others],
            "shortfalls": missed,
        }
        print_json(content)
        return
    print_whole(simple_table(None, SPEED, map(_speed_cells, rows)))
    gigaflops = ", ".join(f"{speed / 1e9:.0f}" for speed in speeds)
    out.print(f"matrix product on {cores()} cores, beside each task: {gigaflops} GFLOP/s")
    for other in others:
        out.print(f"{other.framework} on {other.task}: {other.steps_per_second:,.0f} client-steps/s {other.note}")
    if grown:
        print_whole(simple_table(None, GROWTH, map(_growth_cells, grown)))
    for line in missed:
        out.print(f"below what we want: {line}")


def _chosen(text: str, known: Iterable[str], what: str) -> list[str]:
    names = opt.comma_list([text])
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} '{name}' (known: {', '.join(known)})")
    return names


def _speed_cells(row: Row) -> list[str]:
    speeds = [f"{row.steps_per_second:,.0f}", f"{row.plain_steps_per_second:,.0f}", f"{row.ratio:.2f}"]
    shares = ["" if row.limit is None else f"{row.limit:.0%}", f"{row.to_fedavg:.2f}", f"{row.server:.1%}"]
    peaks = [quantity(count, "B", 1024) for count in (row.peak_bytes, row.plain_peak_bytes)]
    return [row.task, row.algorithm, *speeds, *shares, *peaks]


def _growth_cells(axis: Growth) -> list[str]:
    values = " ".join(f"{value:,}" for value in axis.values)
    milliseconds = " ".join(f"{ms:.3g}" for ms in axis.milliseconds)
    peaks = " ".join(quantity(peak, "B", 1024) for peak in axis.peak_bytes)
    return [axis.axis, values, milliseconds, f"n^{axis.exponent:.2f}", peaks]
