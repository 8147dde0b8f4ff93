"""`fedgbo data`: download public files, pack them, and show a task as numbers and pictures in text."""

import inspect
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.color import Color
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.style import Style
from rich.text import Text
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import err, out, print_json
from fedgbo.core import ConfigError, DataError, unknown
from fedgbo.data.cifar100 import read_cifar100
from fedgbo.data.femnist import read_femnist
from fedgbo.data.fetch import Source, public_sources
from fedgbo.data.fetch import fetch as download
from fedgbo.data.labelled_images import read_cifar10, read_fashion_mnist
from fedgbo.data.public import EVERY_CLIENT, ClientRules, one_class
from fedgbo.data.samples import Samples, SparseSamples, WindowSamples
from fedgbo.data.sent140 import read_sent140
from fedgbo.data.shakespeare import decode, read_shakespeare
from fedgbo.data.store import Array, Packed, Store, data_home, open_packed, there
from fedgbo.reports.charts import save_chart
from fedgbo.reports.label_skew import Skew, label_skew, overview, skew_chart
from fedgbo.reports.table import quantity
from fedgbo.runs.describe import build, find, parameters

READERS: dict[str, Callable[..., Packed]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "fashion-mnist": read_fashion_mnist,
    "femnist": read_femnist,
    "sent140": read_sent140,
    "shakespeare": read_shakespeare,
}
PUBLIC = "cifar10, cifar100, fashion-mnist, femnist, sent140 or shakespeare."
app = typer.Typer(no_args_is_help=True, help="Download, pack and inspect public data sets.")
SHADES = " ░▒▓█"

DataFolder = Annotated[
    Path | None, Option("--data", help="The data folder. \\[default: $FEDGBO_DATA, else ~/.cache/fedgbo]")
]


class TestBy(StrEnum):
    """How train and test are split: by the samples of each user, or by user."""

    sample = "sample"
    user = "user"


@app.command()
def prepare(
    task: Annotated[str, Argument(help=PUBLIC)],
    origin: Annotated[Path, Option("--from", help="A file, archive or folder in one of the public formats.")],
    data: DataFolder = None,
    form: Annotated[
        str | None, Option("--format", help="The format of the files. Needed only if there are several formats.")
    ] = None,
    fraction: Annotated[float | None, Option(help="The share of Shakespeare's raw text for training.")] = None,
    seed: Annotated[int | None, Option(help="The seed of a random split.")] = None,
    min_samples: Annotated[int | None, Option(help="Leave out users with fewer samples.")] = None,
    drop_incomplete: Annotated[
        bool, Option("--drop-incomplete", help="Leave out users without train or test samples.")
    ] = False,
    test_by: Annotated[
        TestBy, Option("-t", "--test-by", help="Split by sample, or by user: train and test then have different users.")
    ] = TestBy.sample,
) -> None:
    """Pack a task's public files into the data folder.

    The format is detected, also in a compressed file or an archive.

    Formats: CIFAR's pickles and binary files, IDX (Fashion-MNIST), LEAF's JSON, TFF's HDF5 and SQLite, CSV, plain text.
    """
    if task not in READERS:
        raise ConfigError(unknown("task with public files", task, READERS))
    if not there(origin):
        raise DataError(f"{origin} does not exist; fedgbo data fetch {task} downloads the public files")
    rules = ClientRules(min_samples, drop_incomplete, test_by is TestBy.user)
    asked = {"format": form, "fraction": fraction, "seed": seed, "rules": rules if rules != EVERY_CLIENT else None}
    given = {key: value for key, value in asked.items() if value is not None}
    accepted = inspect.signature(READERS[task]).parameters
    for key in given:
        if key not in accepted:
            name = "--min-samples, --drop-incomplete or -t" if key == "rules" else f"--{key}"
            raise ConfigError(f"{task} takes no {name}: its files or the task's settings determine the split")
    began = time.perf_counter()
    packed = READERS[task](origin, **given)
    place = data_home(data) / task
    notes = (*packed.notes, *one_class(packed.arrays))
    digest = Store.write(place, packed.arrays, {**packed.meta, "notes": notes})
    spent = f"{quantity(Store.open(place).nbytes, 'B', 1024)}, {time.perf_counter() - began:.1f} s"
    err.print(f"format {packed.meta['format']}: {_counts(packed.arrays)}; {spent}; digest {digest[:12]}")
    for note in notes:
        err.print(escape(note))
    out.print(str(place))


@app.command()
def info(
    task: Annotated[str, Argument(help="The name of a task, or my_file.py:function.")],
    data: DataFolder = None,
    picture: Annotated[Path | None, Option(help="Write the label skew to this path as PNG and SVG.")] = None,
    memory: Annotated[bool, Option(help="Compare the memory with that of one tensor per sample.")] = False,
    verify: Annotated[bool, Option(help="Read all packed data and compare their checksums.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show a task: clients, samples, classes, how labels differ between clients, and some samples."""
    table: dict[str, Any] = {"name": task}
    if data is not None and "data" in parameters(find("task", task)):
        table["data"] = data
    store = open_packed(task, data) if task in READERS else None
    if verify and task not in READERS:
        raise ConfigError(f"{task} has no packed data to verify; those that have: {', '.join(READERS)}")
    built = build("task", table)
    if verify and store is not None:
        store.verify()
    skew = label_skew(built.data) if built.data.train.label_range() else None
    numbers = overview(built, skew, memory)
    if store is not None:
        numbers |= {"format": store.meta.get("format"), "digest": store.digest, "notes": store.meta.get("notes", [])}
        numbers |= {"verified": True} if verify else {}
    if picture is not None and skew is not None:
        files = save_chart(skew_chart(skew, f"{task}: labels by client"), picture)
        numbers["pictures"] = [str(file) for file in files]
    if as_json:
        print_json(numbers)
        return
    _print_numbers(numbers)
    if skew is not None:
        out.print("\nlabels of some clients (rows) by class (columns):")
        out.print(_heat_map(skew))
    out.print("\nsome training samples:")
    rows = np.linspace(0, len(built.data.train) - 1, 4).astype(int)
    vocabulary = store.arrays.get("vocabulary") if store is not None else None
    out.print(_show_samples(built.data.train, rows, vocabulary))


@app.command()
def fetch(
    task: Annotated[str, Argument(help=PUBLIC)],
    name: Annotated[str | None, Option("--source", help="The name of one of the task's public files.")] = None,
    url: Annotated[
        list[str] | None, Option(help="An address to try first; that of a folder ends with /. Repeatable.")
    ] = None,
    data: DataFolder = None,
) -> None:
    """Download and verify a task's public files, and print the command that packs them."""
    wanted = [source.at(url or []) for source in public_sources(task, name)]
    folder = data_home(data) / "downloads" / task
    files = [_download(source, folder) for source in wanted]
    for file in files:
        out.print(str(file))
    err.print(f"pack it with: fedgbo data prepare {task} --from {files[0] if len(files) == 1 else folder}")


def _download(source: Source, folder: Path) -> Path:
    columns = (TextColumn(source.file), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        bar = bars.add_task("download", total=source.size)
        return download(source, folder, progress=lambda done, total: bars.update(bar, completed=done, total=total))


def _counts(arrays: Mapping[str, Array]) -> str:
    """Say how many clients and samples were packed; images without clients are dealt when the task is opened."""
    clients, train, test = "", *(len(arrays.get(f"{half}_labels", ())) for half in ("train", "test"))
    if "train_offsets" in arrays:
        clients, train = f"{len(arrays['train_offsets']) - 1:,} clients, ", int(arrays["train_offsets"][-1])
    test = int(arrays["test_offsets"][-1]) if "test_offsets" in arrays else test
    return f"{clients}{train:,} training and {test:,} test samples"


def _print_numbers(n: dict[str, Any]) -> None:
    out.print(f"{n['task']}: {n['clients']:,} clients, {n['clients_per_round']} per round")
    least, most = n["least_samples"], n["most_samples"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    mean = "" if least == most else f", mean {n['mean_samples']:.1f}"
    out.print(
        f"samples: {n['train_samples']:,} for training ({each} per client{mean}), {n['test_samples']:,} for testing"
    )
    if "classes" in n:
        out.print(
            f"classes: {n['classes']}; each client has {n['classes_per_client']:.1f} of them on average, and the mean "
            f"distance between its labels and all labels is {n['label_distance']:.2f} (0: identical, 1: disjoint)"
        )
    if "digest" in n:
        checked = "; all checksums are right" if n.get("verified") else ""
        out.print(f"packed from: {n['format']}, digest {n['digest']}{checked}")
        for note in n["notes"]:
            out.print(escape(str(note)))
    if "memory_ratio" in n:
        out.print(
            f"memory: {quantity(n['naive_bytes'], 'B', 1024)} as a tensor for each sample, "
            f"{quantity(n['packed_bytes'], 'B', 1024)} packed: {n['memory_ratio']:.0f}x less"
        )
    for file in n.get("pictures", []):
        out.print(f"picture  {file}")


def _heat_map(skew: Skew, most: int = 20) -> Text:
    """Return a line for each client, a character for each class: darker where the client has more of it.

    Where the classes do not fit the terminal, a character stands for several that follow one another.
    """
    clients, counts = skew.clients[:most], skew.counts[:most]
    width = max(len(str(client)) for client in clients)
    together = -(-counts.shape[1] // max(1, out.width - width - 3))
    counts = np.add.reduceat(counts, np.arange(0, counts.shape[1], together), axis=1)
    levels = np.ceil(counts / counts.sum(axis=1, keepdims=True) * (len(SHADES) - 1)).astype(int)
    rows = ("".join(SHADES[level] for level in row) for row in levels)
    return Text("\n".join(f"{client:>{width}} |{row}|" for client, row in zip(clients, rows, strict=False)))


def _show_samples(samples: Samples, rows: Array, vocabulary: Array | None) -> Text:
    """Return some samples with their targets: characters, words, images or shapes."""
    inputs, targets = samples.batch(rows)
    pairs = zip(inputs, targets, strict=True)
    if isinstance(samples, WindowSamples):
        lines = [f"{decode(x.numpy())!r} -> {decode(y.reshape(1).numpy())!r}" for x, y in pairs]
    elif isinstance(samples, SparseSamples):
        features = [x[x[:, 1] > 0, 0].int().tolist() for x in inputs]  # those that a sample has
        words = [" ".join(f"#{i}" if vocabulary is None else str(vocabulary[i]) for i in used) for used in features]
        lines = [f"{text} -> {int(y)}" for text, y in zip(words, targets, strict=True)]
    elif inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        return _images(inputs.numpy(), [str(int(y)) for y in targets])
    else:
        lines = [f"{tuple(x.shape)} -> {_target(y.tolist())}" for x, y in pairs]
    return Text("\n".join(lines))


def _target(value: Any) -> str:
    """Write a number, or a list of them, with three digits.

    >>> _target(7), _target([0.123456, 2.0])
    ('7', '[0.123, 2]')
    """
    return f"[{', '.join(map(_target, value))}]" if isinstance(value, list) else f"{value:.3g}"


def _images(images: Array, labels: list[str]) -> Text:
    """Draw two pixels a character: the upper one as foreground of a half block, the lower one as background."""
    low, high = images.min(axis=(1, 2, 3), keepdims=True), images.max(axis=(1, 2, 3), keepdims=True)
    grey = ((images - low) / np.maximum(high - low, 1e-9) * 255).astype(int)  # (N, C, H, W)
    grey = np.repeat(grey, 3, axis=1) if grey.shape[1] == 1 else grey
    if grey.shape[2] % 2:
        grey = np.pad(grey, [(0, 0), (0, 0), (0, 1), (0, 0)])
    text, width = Text(), grey.shape[3]
    fit = max(1, (out.width + 1) // (width + 1))  # in a row
    for first in range(0, len(grey), fit):
        text.append(" ".join(label.ljust(width)[:width] for label in labels[first : first + fit]) + "\n")
        for y in range(0, grey.shape[2], 2):
            for number, image in enumerate(grey[first : first + fit]):
                text.append(" " if number else "")
                for x in range(width):
                    upper, lower = (Color.from_rgb(*map(float, image[:, row, x])) for row in (y, y + 1))
                    text.append("▀", Style(color=upper, bgcolor=lower))
            text.append("\n")
    return text
