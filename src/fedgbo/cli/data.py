"""`fedgbo data`: fetch public files, pack them, look at them."""

import inspect
import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedgbo.cli.console import clean_errors, err, out, quantity
from fedgbo.cli.pictures import heat_map, show_samples
from fedgbo.core.errors import ConfigError, DataError, unknown
from fedgbo.data.fetch import fetch as download
from fedgbo.data.fetch import source
from fedgbo.data.readers import READERS
from fedgbo.data.store import Store, data_home
from fedgbo.reports.chart import save_chart
from fedgbo.reports.overview import overview
from fedgbo.reports.skew import label_skew, skew_chart
from fedgbo.data.sources import source
from fedgbo.data.store import Store
from fedgbo.reports.charts import save_chart
from fedgbo.reports.label_skew import label_skew, overview, skew_chart
from fedgbo.runs.describe import build, find, parameters

app = typer.Typer(no_args_is_help=True, help="Public data sets: fetch their files, pack them once, look at them.")
Folder = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder. \\[default: $FEDGBO_DATA, else ~/.cache/fedgbo]", show_default=False),
]


@app.command()
def prepare(
    task: Annotated[str, typer.Argument(help="cifar100, femnist, sent140 or shakespeare.")],
    origin: Annotated[Path, typer.Option("--from", help="A file, archive or folder in one of the public formats.")],
    data: Folder = None,
    fraction: Annotated[float | None, typer.Option(help="Shakespeare: share of the text for training.")] = None,
    seed: Annotated[int | None, typer.Option(help="CIFAR-100, Sent140: of the split, where one is drawn.")] = None,
) -> None:
    """Pack a task's public files once, into the data folder.

    The format is found from what lies there: CIFAR-100's pickles, binary version or TFF's HDF5; LEAF's JSON; TFF's
    fed_emnist; Sentiment140's CSV; Gutenberg's text; each also compressed or in an archive.
    """
    with clean_errors():
        if task not in READERS:
            raise ConfigError(unknown("task with public files", task, READERS))
        if not origin.exists():
            raise DataError(f"there is nothing at {origin}; fedgbo data fetch {task} downloads the public files")
        told = {key: value for key, value in {"fraction": fraction, "seed": seed}.items() if value is not None}
        accepted = inspect.signature(READERS[task]).parameters
        for key in told:
            if key not in accepted:
                raise ConfigError(f"{task} takes no --{key}: its files say how they are split")
        began = time.perf_counter()
        packed = READERS[task](origin, **told)
        place = data_home(data) / task
        Store.write(place, packed.arrays, packed.meta)
        size = sum(file.stat().st_size for file in place.iterdir())
        clients = len(packed.arrays["train_offsets"]) - 1
        err.print(f"{clients} clients, {quantity(size, 'B', 1024)}, {time.perf_counter() - began:.1f} s")
        out.print(str(place))


@app.command()
def info(
    task: Annotated[str, typer.Argument(help="Any task's name, or my_file.py:function.")],
    data: Folder = None,
    picture: Annotated[Path | None, typer.Option(help="Write the label skew as PNG and SVG there.")] = None,
    memory: Annotated[bool, typer.Option(help="Compare memory with each sample as a tensor of its own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show a task: clients, samples, classes, how labels differ between clients, and some samples."""
    with clean_errors():
        table: dict[str, Any] = {"name": task}
        if data is not None and "data" in parameters(find("task", task)):
            table["data"] = data
        built = build("task", table)
        skew = label_skew(built.data) if built.data.train.label_range() else None
        numbers = overview(built, skew, memory)
        if picture is not None and skew is not None:
            files = save_chart(skew_chart(skew, f"{task}: labels by client"), picture)
            numbers["pictures"] = [str(file) for file in files]
        if as_json:
            out.print_json(json.dumps(numbers))
            return
        _print_numbers(numbers)
        if skew is not None:
            out.print("\nlabels of some clients (rows) by class (columns):")
            out.print(heat_map(skew))
        out.print("\nsome training samples:")
        rows = np.linspace(0, len(built.data.train) - 1, 4).astype(int).tolist()
        out.print(show_samples(built.data.train, rows, _vocabulary(task, data)))


@app.command()
def fetch(
    task: Annotated[str, typer.Argument(help="cifar100, femnist, sent140 or shakespeare.")],
    name: Annotated[str | None, typer.Option("--source", help="Which of the task's public files.")] = None,
    data: Folder = None,
) -> None:
    """Download a task's public files, checked and resumable, then say how to pack them."""
    with clean_errors():
        wanted = source(task, name)
        folder = data_home(data) / "downloads" / task
        bars = Progress(
            TextColumn(wanted.file), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=err, transient=True
        )
        with bars:
            bar = bars.add_task("download", total=wanted.size)
            file = download(wanted, folder, progress=lambda done, total: bars.update(bar, completed=done, total=total))
        out.print(str(file))
        err.print(f"pack it with: fedgbo data prepare {task} --from {file}")


def _print_numbers(n: dict[str, Any]) -> None:
    out.print(f"{n['task']}: {n['clients']:,} clients, {n['clients_per_round']} a round")
    out.print(
        f"samples: {n['train_samples']:,} for training ({n['least_samples']} to {n['most_samples']} a client, "
        f"mean {n['mean_samples']:.1f}), {n['test_samples']:,} for testing"
    )
    if "classes" in n:
        out.print(
            f"classes: {n['classes']}; a client has {n['classes_per_client']:.1f} of them, and its labels are "
            f"{n['label_distance']:.2f} away from all clients' (0: IID, 1: nothing in common)"
        )
    if "memory_ratio" in n:
        out.print(
            f"memory: {quantity(n['naive_bytes'], 'B', 1024)} as a tensor for each sample, "
            f"{quantity(n['packed_bytes'], 'B', 1024)} packed: {n['memory_ratio']:.0f}x less"
        )
    for file in n.get("pictures", []):
        out.print(f"picture  {file}")


def _vocabulary(task: str, data: Path | None) -> Any:
    if task != "sent140":
        return None
    return Store.open(data_home(data) / task).arrays.get("vocabulary")
