"""Options that several commands share, as annotated types, and the run that they describe."""

import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from fedgbo.cli.console import err
from fedgbo.core import ConfigError, whole
from fedgbo.engines.device import cores
from fedgbo.experiments.request import parse_value, requested_config, same_as_fedavg
from fedgbo.runs.config import RunConfig


# rich reads an unescaped [default: ...] as markup and drops it: it is written with two backslashes.
def whole_number(text: str | int) -> int:
    """Read a whole number in any way that Python writes one, such as 1_000 or 0x10; a default is a number already."""
    if type(value := parse_value(str(text))) is not int:
        raise BadParameter(f"'{text}' is not a valid integer.")
    return value


Whole = partial(Option, parser=whole_number, metavar="INTEGER")
Texts = list[str] | None
Items = Annotated[Texts, Argument(metavar="[CONFIG.toml] [KEY=VALUE]...", help="A TOML file; settings override it.")]
Task = Annotated[str | None, Option(help="A task's name, or my_file.py:function. \\[default: digits]")]
Algorithm = Annotated[str | None, Option(help="An algorithm's name, or my_file.py:Class. \\[default: fedgbo]")]
Optimiser = Annotated[str | None, Option(help="An optimiser's name, or my_file.py:Class.")]
Preset = Annotated[str | None, Option(help="Tuned settings to start from: a name, a .csv of fedgbo tune, or none.")]
Rounds = Annotated[int | None, Whole(help="Communication rounds. \\[default: 100]")]
LocalSteps = Annotated[int | None, Whole(help="K, local steps of a client. \\[default: 10]")]
Seed = Annotated[int | None, Whole(help="Random seed. \\[default: 0]")]
EvalEvery = Annotated[int | None, Whole(help="Rounds between evaluations. \\[default: so that there are 100]")]
ClientsPerRound = Annotated[str | None, Option(help="M, or all. \\[default: the task's]")]
BatchSize = Annotated[str | None, Option(help="B, or full. \\[default: the task's]")]
TestSamples = Annotated[int | None, Whole(help="Evaluate on a fixed random sample of the test set.")]
Weights = Annotated[str | None, Option(help="Mean over clients, or over their samples. \\[default: clients]")]
Workers = Annotated[int | None, Whole(help="Clients trained at the same time. \\[default: the cores]")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1 ..., or auto for a GPU where there is one.")]
Engine = Annotated[str | None, Option(help="plain: the textbook loop; vmap: many clients at a time. \\[default: auto]")]
Explain = Annotated[bool, Option("--explain", help="Print how clients take their local steps, and why.")]
Jobs = Annotated[int | None, Whole(help="Runs at the same time. \\[default: the cores]")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Out = partial(Option, "--out", "-o")  # the help differs between commands
Output = partial(Option, "--output", "-o")
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress.")]


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


def new_folder(*names: str) -> Path:
    """Return the default folder of a new run or search: runs/<names>-<time>, with file.py:function as function."""
    return Path("runs") / "-".join([*(name.rpartition(":")[2] for name in names), time.strftime("%Y%m%d-%H%M%S")])


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


def check_output(path: Path) -> None:
    """Raise if --output names a file that cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--output {path}: cannot write there; give a file in a folder that exists")
