"""Tuned settings, kept as data: which lr, beta, ... for which task, algorithm, optimiser and K."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from fedgbo.core.errors import ConfigError, unknown
from fedgbo.core.optimiser import Optimiser
from fedgbo.runs.describe import find, parameters

COLUMNS = ["Dataset", "Algorithm", "Optimiser", "K", "Settings"]
PRESETS = {"digits": "digits.csv", "paper": "paper.csv"}  # paper: the authors' own table, to the letter

# The authors' spellings of AdaptiveFedOpt's settings, and ours. FedMAX's beta is the algorithm's, and stays `beta`.
SPELLINGS = {"client_lr": "lr", "clr": "lr", "slr": "server_lr", "sbeta": "beta"}


@dataclass(frozen=True)
class Preset:
    """One row: the settings of an algorithm with an optimiser on a task."""

    task: str
    algorithm: str
    optimiser: str
    local_steps: int
    settings: Mapping[str, float]

    def algorithm_table(self) -> dict[str, Any]:
        """Return the table from which the algorithm is built."""
        return algorithm_table(self.algorithm, self.optimiser, self.settings)

    def line(self) -> str:
        """Return this as a line of a preset file."""
        settings = ", ".join(f"{key}={_digits(value)}" for key, value in self.settings.items())
        text = io.StringIO()
        csv.writer(text).writerow([self.task, self.algorithm, self.optimiser, self.local_steps, settings])
        return text.getvalue().rstrip()


def preset_file(rows: Iterable[Preset]) -> str:
    """Return what a preset file holds: a heading and the rows."""
    return "\n".join([",".join(COLUMNS), *(row.line() for row in rows)]) + "\n"


def presets(name: str) -> list[Preset]:
    """Return all rows of the presets of that name, or of the user's own .csv file."""
    if name.endswith(".csv"):
        return _rows(_read(Path(name)), name)
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS) + "; your own: path/to/file.csv, as fedgbo tune writes it")
    return _rows(files("fedgbo.experiments").joinpath("presets", PRESETS[name]).read_text(encoding="utf-8"), name)


def preset(
    name: str, task: str, algorithm: str, optimiser: str | None = None, local_steps: int | None = None
) -> Preset | None:
    """Return the row that fits best; a stand-in takes its task's.

    An optimiser left open is SGD or SGDm, if they are there. Where no row has this K, the nearest is taken.
    """
    tasks = (task, task.removesuffix("-synthetic"))
    rows = [row for row in presets(name) if row.task in tasks and row.algorithm == algorithm]
    rows = [row for row in rows if optimiser in (None, row.optimiser)]
    order = ("sgd", "sgdm", "rmsprop", "adam")

    def distance(row: Preset) -> tuple[bool, int, int]:
        first = order.index(row.optimiser) if row.optimiser in order else len(order)
        return row.task != task, first, abs(row.local_steps - (local_steps or 0))

    return min(rows, key=distance, default=None)


def known_name(text: str) -> str:
    """Return the name as presets have it: ours in lower case, file.py:Class as the user wrote it."""
    return text if ":" in text else text.lower()


def preset_of(task: str) -> str | None:
    """Return the name of the presets that are used for a task unless others are asked for."""
    known = task.removesuffix("-synthetic")
    return next((name for name in PRESETS if any(row.task == known for row in presets(name))), None)


def algorithm_table(algorithm: str, optimiser: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sort flat settings (lr, beta, mu, server_lr, ...) into the algorithm and its optimisers.

    >>> algorithm_table("fedgbo", "sgdm", {"lr": 0.1, "beta": 0.9})
    {'name': 'fedgbo', 'optimiser': {'name': 'sgdm', 'lr': 0.1, 'beta': 0.9}}
    """
    made = find("algorithm", algorithm)
    slots = optimiser_slots(made)
    table: dict[str, Any] = {"name": algorithm}
    if not slots:
        table.update(settings)
        return table
    client, server = next(iter(slots)), list(slots)[-1]  # the same one, unless the server has an optimiser of its own
    for slot, kind in slots.items():
        table[slot] = {"name": optimiser or "sgdm" if kind is Optimiser else "sgd"}
    if optimiser is not None and Optimiser not in slots.values() and optimiser != "sgd":
        raise ConfigError(f"{algorithm} trains with plain SGD, not {optimiser}; leave the optimiser out")
    for key, value in settings.items():
        if key == "lr":
            table[client]["lr"] = value
        elif key == "server_lr" and server != client:
            table[server]["lr"] = value
        elif key in parameters(find("optimiser", table[server]["name"])):
            table[server][key] = value
        elif key in parameters(made) and key not in slots:
            table[key] = value
        else:
            raise ConfigError(
                f"{algorithm} with {table[server]['name']} takes no {key}; " + _accepted(table, made, slots)
            )
    return table


def optimiser_slots(made: Any) -> dict[str, type[Optimiser]]:
    """Return the names of a class's arguments that are optimisers, in order: the client's, then the server's."""
    hints = get_type_hints(made)
    return {key: hints[key] for key in parameters(made) if _is_optimiser(hints.get(key))}


def _is_optimiser(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Optimiser)


def _accepted(table: Mapping[str, Any], made: Any, slots: Mapping[str, Any]) -> str:
    known = [key for slot in slots for key in parameters(find("optimiser", table[slot]["name"]))]
    known += [key for key in parameters(made) if key not in slots and key not in ("objective", "inverse")]
    if len(slots) > 1:
        known.append("server_lr")
    return f"it takes {', '.join(dict.fromkeys(known))}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the preset file {file} cannot be read: {error}") from error


def _rows(text: str, where: str) -> list[Preset]:
    reader = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    if list(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(f"{where} is no preset file; its first line must be {','.join(COLUMNS)}")
    rows = []
    for number, row in enumerate(reader, start=1):
        try:
            task, algorithm, optimiser = (known_name(row[column]) for column in COLUMNS[:3])
            rows.append(Preset(task, algorithm, optimiser, int(row["K"]), _settings(row["Settings"])))
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f'{where}: row {number} must be like digits,fedgbo,sgdm,10,"lr=0.1, beta=0.9", not '
                f"{','.join(map(str, row.values()))}"
            ) from error
    return rows


def _digits(value: float) -> str:
    """Six digits where they say it all.

    >>> _digits(0.1), _digits(1e-05), _digits(1 / 3)
    ('0.1', '1e-05', '0.3333333333333333')
    """
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _settings(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {SPELLINGS.get(key, key): float(value) for key, _, value in pairs}
