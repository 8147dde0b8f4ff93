"""Options that several commands share, as annotated types, and the run that they describe."""

import atexit
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from fedgbo.cli.console import err
from fedgbo.core import ConfigError, RunFolderError, whole
from fedgbo.engines.device import cores
from fedgbo.experiments.presets import PRESETS
from fedgbo.experiments.request import parse_value, requested_config, same_as_fedavg
from fedgbo.runs.config import RunConfig
from fedgbo.runs.describe import CATALOGUES


# rich reads an unescaped [default: ...] as markup and drops it: it is written with two backslashes.
def whole_number(text: str | int) -> int:
    """Read a whole number in any way that Python writes one, such as 1_000 or 0x10; a default is a number already."""
    if type(value := parse_value(str(text))) is not int:
        raise BadParameter(f"'{text}' is not a valid integer.")
    return value


def named(kind: str, *more: str) -> Callable[[str], list[str]]:
    """Return the shell completion of a catalogue's names."""
    return lambda incomplete: sorted(name for name in (*CATALOGUES[kind], *more) if name.startswith(incomplete.lower()))


def entries(incomplete: str) -> list[str]:
    """Complete an algorithm of a comparison: a name or, after a colon, the name of its optimiser."""
    algorithm, colon, optimiser = incomplete.partition(":")
    if not colon:
        return named("algorithm", "all")(incomplete)
    return [f"{algorithm}:{name}" for name in named("optimiser")(optimiser)]


Whole = partial(Option, parser=whole_number, metavar="INTEGER")
TaskName = partial(Option, autocompletion=named("task"), help="The name of a task, or my_file.py:function.")
AlgorithmName = partial(Option, autocompletion=named("algorithm"))
Texts = list[str] | None
Items = Annotated[
    Texts, Argument(metavar="[FILE.toml] [KEY=VALUE]...", help="A file with settings, and settings that override it.")
]
Task = Annotated[str | None, TaskName(help="The name of a task, or my_file.py:function. \\[default: digits]")]
Algorithm = Annotated[
    str | None,
    AlgorithmName(
        help="The name of an algorithm, such as fedgbo or fedgbo:adam, or my_file.py:Class. \\[default: fedgbo]"
    ),
]
Optimiser = Annotated[
    str | None, Option(autocompletion=named("optimiser"), help="The name of an optimiser, or my_file.py:Class.")
]
Preset = Annotated[
    str | None,
    Option(
        autocompletion=lambda incomplete: [name for name in (*PRESETS, "none") if name.startswith(incomplete)],
        help="Start from these tuned settings: a name, a .csv file of fedgbo tune, or none.",
    ),
]
Rounds = Annotated[int | None, Whole(help="The number of communication rounds. \\[default: 100]")]
LocalSteps = Annotated[int | None, Whole(help="The local steps of a client in a round (K). \\[default: 10]")]
Seed = Annotated[int | None, Whole(help="The random seed. \\[default: 0]")]
EvalEvery = Annotated[
    int | None, Whole(help="The number of rounds between evaluations. \\[default: 100 evaluations per run]")
]
ClientsPerRound = Annotated[
    str | None, Option(help="The clients that take part in a round (M): a number, or all. \\[default: the task's]")
]
BatchSize = Annotated[
    str | None, Option(help="The samples of a minibatch (B): a number, or full. \\[default: the task's]")
]
TestSamples = Annotated[int | None, Whole(help="The size of a fixed random sample of the test set to evaluate on.")]
Weights = Annotated[
    str | None,
    Option(help="The weights of the mean: clients (all equal) or samples (by number of samples). \\[default: clients]"),
]
Workers = Annotated[
    int | None, Whole(help="The number of clients that train at the same time. \\[default: the number of cores]")
]
Device = Annotated[str, Option(help="Where to train: cpu, cuda, cuda:1 ..., or auto for a GPU if there is one.")]
Engine = Annotated[str | None, Option(help="plain: the textbook loop. vmap: many clients at a time. \\[default: auto]")]
Explain = Annotated[bool, Option("--explain", help="Print which code takes the clients' local steps, and why.")]
Jobs = Annotated[int | None, Whole(help="The number of runs at the same time. \\[default: the number of cores]")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Wide = Annotated[bool, Option("--wide", help="Print all columns of the table.")]
DryRun = Annotated[bool, Option("--dry-run", help="List the planned runs and start none.")]
Out = partial(Option, "--out", "-o")  # the help differs between commands
Output = partial(Option, "--output", "-o")
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress.")]


def requested_run(items: list[str] | None, flags: Mapping[str, Any], quiet: bool = False) -> RunConfig:
    """Return the run that a TOML file, flags and key=value settings describe; print which preset it starts from."""
    files = [item for item in items or [] if "=" not in item]
    if len(files) > 1:
        raise ConfigError(f"give one TOML file, not {len(files)}: {', '.join(files)}")
    file = Path(files[0]) if files else None
    config, note = requested_config(file, flags, [item for item in items or [] if "=" in item])
    if note and not quiet:
        err.print(f"{config.label} on {config.task['name']}, {note}")
    if (same := same_as_fedavg(config)) and not quiet:
        err.print(same)
    return config


def new_folder(*names: str, claim: bool = True) -> Path:
    """Make the default folder of a new run or search: runs/<names>-<time>, with file.py:function as function.

    Making the folder claims the name: commands that start in the same second get -2, -3, ... A folder that is still
    empty when the process ends is removed. Without `claim`, nothing is made.
    """
    name = "-".join([*(name.rpartition(":")[2] for name in names), time.strftime("%Y%m%d-%H%M%S")])
    path, number = Path("runs") / name, 1
    while claim:
        try:
            path.mkdir(parents=True)
            atexit.register(_remove_if_empty, path.absolute())
            break
        except FileExistsError:
            number += 1
            path = path.with_name(f"{name}-{number}")
        except OSError as error:
            raise RunFolderError(f"cannot make the folder {path}: {error.strerror}; choose one with --out") from error
    return path


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def comma_list(texts: Iterable[str] | None) -> list[str]:
    """Split lists at commas.

    >>> comma_list(["cifar100,Sent140", "femnist"])
    ['cifar100', 'sent140', 'femnist']
    """
    return [name.strip().lower() for text in texts or () for name in text.split(",") if name.strip()]


def worker_count(jobs: int | None) -> int:
    """Return the value of --jobs; by default the number of cores."""
    workers = cores() if jobs is None else jobs
    whole("jobs", workers)
    return workers


def check_folders(places: Iterable[Path]) -> None:
    """Raise if one of the places where runs are looked for is not a folder."""
    for place in places:
        if place.exists() and not place.is_dir():
            raise RunFolderError(f"{place} is a file; give the folder of the run")
        if not place.is_dir():
            raise RunFolderError(f"there is no folder {place}; give run folders, or folders that contain some")


def check_output(path: Path) -> None:
    """Raise if --output names a file that cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--output {path}: cannot write there; give a file in a folder that exists")
