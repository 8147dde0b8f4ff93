"""`fedgbo bench`."""

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Option

from fedgbo.bench.growth import Growth, growths
from fedgbo.bench.peers import Peer, check_peer, measure_peer
from fedgbo.bench.picture import growth_chart, speed_chart
from fedgbo.bench.race import BenchError
from fedgbo.bench.report import WANTED, Row, measure, shortfalls
from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json, save_chart_if_possible
from fedgbo.core import ConfigError, positive, unknown, whole
from fedgbo.engines.device import cores, device_of
from fedgbo.reports.table import quantity

LINE = "{:<12}{:<8}{:>9}{:>9}{:>7}{:>8}{:>8}{:>8}{:>9}"  # 78 columns
SPEED = LINE.format("task", "client", "steps/s", "plain", "ratio", "limit", "FedAvg", "server", "memory")
LEGEND = (
    "client: the algorithm, or another framework. steps/s: local steps per second, all clients together. plain: the "
    "same for a plain PyTorch loop, with one thread or all cores, whichever is faster. ratio: fedgbo's speed divided "
    "by the plain loop's. limit: fedgbo's share of the machine's speed in a matrix product. FedAvg: the speed divided "
    "by that of FedAvg. server: the server's share of a round. memory: fedgbo's peak."
)


def bench(
    tasks: Annotated[
        str, Option(help="Tasks and models, separated by commas. \\[default: all]", show_default=False)
    ] = ",".join(WANTED),
    seconds: Annotated[float, Option(help="The length of each turn in seconds; a turn has at least one round.")] = 0.5,
    repeats: Annotated[int, Option(help="The number of turns.")] = 7,
    growth: Annotated[bool, Option(help="Also measure how the cost grows.")] = True,
    against: Annotated[
        str,
        Option(help="Other frameworks: flower, pfl, fedjax, blazefl; =PYTHON names the Python of another environment."),
    ] = "",
    device: opt.Device = "cpu",
    picture: Annotated[
        Path | None, Option(help="Draw the results into this file, and write a CSV file beside it.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Measure speed on this machine: fedgbo, a plain PyTorch loop and a matrix product, in turns.

    Run it on an otherwise idle machine. Compare ratios within one run, not absolute numbers.
    """
    names = opt.comma_list([tasks])
    for name in names:
        if name not in WANTED:
            raise ConfigError(unknown("task", name, WANTED))
    peers = dict(one.partition("=")[::2] for one in opt.comma_list([against]))
    for peer, python in peers.items():
        check_peer(peer, python or sys.executable)
    positive("seconds", seconds)
    whole("repeats", repeats)
    device_of(device)
    say = err.print if as_json else out.print
    rows, speeds, others = list[Row](), [], list[Peer]()
    say(SPEED)
    for name in names:
        found, speed = measure(name, seconds, repeats, device)
        rows += found
        speeds.append(speed)
        for row in found:
            say(_speed_line(row))
        others += _measured_peers(peers, name, seconds * repeats, say)
    say(LEGEND)
    gigaflops = ", ".join(f"{speed / 1e9:.0f}" for speed in speeds)
    say(f"matrix product on {device} ({cores()} cores), beside each task: {gigaflops} GFLOP/s")
    grown = _measured_growth(seconds, max(3, repeats // 2), say) if growth else []
    missed = shortfalls(rows)
    for line in missed:
        say(f"missed target: {line}")
    if picture is not None:
        _draw(rows, others, grown, picture)
    if as_json:
        content = {
            "cores": cores(),
            "device": device,
            "product_flops_per_second": speeds,
            "rows": [asdict(row) for row in rows],
            "growth": [asdict(axis) for axis in grown],
            "peers": [asdict(other) for other in others],
            "shortfalls": missed,
        }
        print_json(content)


def _measured_peers(peers: Mapping[str, str], task: str, seconds: float, say: Callable[..., None]) -> list[Peer]:
    """Measure the other frameworks on a task, each with its Python; one that fails is left out."""
    found = []
    for peer, python in peers.items():
        try:
            found.append(measure_peer(peer, task, seconds, python or sys.executable))
            say(f"{'':<12}{peer:<8}{found[-1].steps_per_second:>9,.0f} {found[-1].note}")
        except BenchError as error:
            say(f"{'':<12}{peer:<8} {error}", markup=False)
    return found


def _measured_growth(seconds: float, repeats: int, say: Callable[..., None]) -> list[Growth]:
    say("how the cost grows:")
    found = []
    for axis in growths(seconds, repeats):
        found.append(axis)
        say(f"  {axis.axis}: grows like n^{axis.exponent:.2f}")
        for value, ms, peak in zip(axis.values, axis.milliseconds, axis.peak_bytes, strict=True):
            say(f"{value:>16,}{ms:>12,.1f} ms a round{quantity(peak, 'B', 1024):>14}")
    return found


def _draw(rows: Sequence[Row], peers: Sequence[Peer], grown: Sequence[Growth], path: Path) -> None:
    files = save_chart_if_possible(lambda: speed_chart(rows, peers), path)
    if grown:
        beside = path.with_name(f"{path.with_suffix('').name}-growth{path.suffix}")
        files += save_chart_if_possible(lambda: growth_chart(grown), beside)
    table = path.with_suffix(".csv")
    with table.open("w", newline="") as stream:
        write = csv.writer(stream, lineterminator="\n").writerow
        write(("what", "of", "value", "unit", "peak bytes"))
        for row in rows:
            write((f"{row.algorithm}, times the plain loop", row.task, f"{row.ratio:.3g}", "", row.peak_bytes))
        for peer in peers:
            write((peer.framework, peer.task, f"{peer.steps_per_second:.4g}", "local steps per second", ""))
        for axis in grown:
            for value, ms, peak in zip(axis.values, axis.milliseconds, axis.peak_bytes, strict=True):
                write((axis.axis, value, f"{ms:.4g}", "ms per round", peak))
    for file in [*files, table]:
        err.print(f"wrote {file}")


def _speed_line(row: Row) -> str:
    speeds = f"{row.steps_per_second:,.0f}", f"{row.plain_steps_per_second:,.0f}", f"{row.ratio:.2f}"
    shares = "" if row.limit is None else f"{row.limit:.0%}", f"{row.to_fedavg:.2f}", f"{row.server:.1%}"
    return LINE.format(row.task, row.algorithm, *speeds, *shares, quantity(row.peak_bytes, "B", 1024))
