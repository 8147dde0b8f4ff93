"""`fedgbo bench`."""

import json
from dataclasses import asdict
from typing import Annotated, Any

from rich.table import Table
from typer import Option

from fedgbo.bench.growth import Growth, growths
from fedgbo.bench.peers import PEERS, measure_peer
from fedgbo.bench.report import LEARNING_RATES, Row, measure, shortfalls
from fedgbo.cli.console import clean_errors, err, out, print_whole, quantity
from fedgbo.core.checks import positive, whole
from fedgbo.core.errors import ConfigError
from fedgbo.runs.loop import cores


def bench(
    tasks: Annotated[str, Option(help="Which tasks, with commas between.")] = ",".join(LEARNING_RATES),
    seconds: Annotated[float, Option(help="Of each turn, in seconds.")] = 2.0,
    repeats: Annotated[int, Option(help="Turns of each.")] = 7,
    growth: Annotated[bool, Option(help="Measure how cost grows, too.")] = True,
    against: Annotated[str, Option(help="Other frameworks to run beside, if installed: flower, pfl.")] = "",
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure speed on this machine: ours, a plain PyTorch loop and the machine's own, taking turns.

    Run it on an otherwise idle machine. What counts is the ratio in one run, not the absolute figure.
    """
    with clean_errors():
        names, peers = _chosen(tasks, list(LEARNING_RATES), "task"), _chosen(against, list(PEERS), "framework")
        positive("seconds", seconds)
        whole("repeats", repeats)
        rows, speeds, others = [], [], []
        for name in names:
            err.print(f"{name}: five contenders, {repeats} turns of {seconds:g} s each ...")
            found, speed = measure(name, seconds, repeats)
            rows += found
            speeds.append(speed)
            for peer in peers:
                err.print(f"{name}: {peer} ...")
                others.append(measure_peer(peer, name, seconds * repeats))
        grown = []
        if growth:
            err.print("how cost grows ...")
            grown = list(growths(seconds / 2, max(3, repeats // 2)))
        missed = shortfalls(rows)
        if as_json:
            content: dict[str, Any] = {
                "cores": cores(),
                "product_flops_per_second": speeds,
                "rows": [asdict(row) for row in rows],
                "growth": [asdict(g) for g in grown],
                "peers": [asdict(other) for other in others],
                "shortfalls": missed,
            }
            out.print_json(json.dumps(content))
            return
        print_whole(_table(rows))
        gigaflops = ", ".join(f"{speed / 1e9:.0f}" for speed in speeds)
        out.print(f"matrix product on {cores()} cores, beside each task: {gigaflops} GFLOP/s")
        for other in others:
            out.print(f"{other.framework} on {other.task}: {other.steps_per_second:,.0f} client-steps/s {other.note}")
        if grown:
            print_whole(_growth_table(grown))
        for line in missed:
            out.print(f"below what we want: {line}")


def _chosen(text: str, known: list[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} '{name}' (known: {', '.join(known)})")
    return names


def _table(rows: list[Row]) -> Table:
    heads = ("task", "algorithm", "client-steps/s", "plain loop", "ratio", "of the limit", "to FedAvg", "server")
    table = Table(*heads, "peak memory", "plain loop's")
    for row in rows:
        table.add_row(
            row.task,
            row.algorithm,
            f"{row.steps_per_second:,.0f}",
            f"{row.plain_steps_per_second:,.0f}",
            f"{row.ratio:.2f}",
            "" if row.limit is None else f"{row.limit:.0%}",
            f"{row.to_fedavg:.2f}",
            f"{row.server:.1%}",
            quantity(row.peak_bytes, "B", 1024),
            quantity(row.plain_peak_bytes, "B", 1024),
        )
    return table


def _growth_table(grown: list[Growth]) -> Table:
    table = Table("more of", "values", "ms a round", "grows like", "peak memory without data files")
    for g in grown:
        table.add_row(
            g.axis,
            " ".join(f"{value:,}" for value in g.values),
            " ".join(f"{ms:.3g}" for ms in g.milliseconds),
            f"n^{g.exponent:.2f}",
            " ".join(quantity(peak, "B", 1024) for peak in g.peak_bytes),
        )
    return table
