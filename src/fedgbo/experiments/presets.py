"""Tuned settings as data: lr, beta, ... for a task, algorithm, optimiser and K."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedgbo.core import ConfigError, Optimiser, unknown
from fedgbo.runs.describe import find, name_of, parameters

COLUMNS = ["Dataset", "Algorithm", "Optimiser", "K", "Settings"]
PRESETS = ("digits", "field", "paper", "recommended")  # paper.csv is an exact copy of the authors' table
FIELD = "field"  # every algorithm, tuned with the same effort: scripts/tune_digits.py --field
SPELLINGS = {"client_lr": "lr", "clr": "lr", "slr": "server_lr", "sbeta": "beta"}  # the authors', for AdaptiveFedOpt
EXAMPLES = {
    "lr": 0.1, "server_lr": 0.1, "beta": 0.9, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "mu": 0.1, "alpha": 0.1,
    "rho": 0.05, "q": 1, "lam": 0.1, "tau": 10,
}  # fmt: skip
ORDER = ("sgd", "sgdm", "rmsprop", "adam")


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


def preset_file(rows: Iterable[Preset]) -> str:
    """Return the content of a preset file: a heading and the rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        settings = ", ".join(f"{key}={_digits(value)}" for key, value in row.settings.items())
        writer.writerow([row.task, row.algorithm, row.optimiser, row.local_steps, settings])
    return text.getvalue()


def presets(name: str) -> list[Preset]:
    """Return all rows of the presets of that name, or of the user's own .csv file."""
    if name.endswith(".csv"):
        try:
            return _parse(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the preset file {name} cannot be read: {error}") from error
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS) + "; your own: path/to/file.csv, as fedgbo tune writes it")
    return _parse(files("fedgbo.experiments").joinpath("presets", f"{name}.csv").read_text(encoding="utf-8"), name)


def preset(
    name: str, task: str, algorithm: str, optimiser: str | None = None, local_steps: int | None = None
) -> Preset | None:
    """Return the row that fits best; a synthetic stand-in uses the rows of its original task.

    Without `optimiser`, SGD and SGDm are preferred. If no row has this K, the row with the nearest K is returned.
    """

    def distance(row: Preset) -> tuple[bool, int, int]:
        place = ORDER.index(row.optimiser) if row.optimiser in ORDER else len(ORDER)
        return row.task != task, place, abs(row.local_steps - (local_steps or 0))

    rows = [row for row in presets(name) if row.task in task_names(task) and row.algorithm == algorithm]
    return min((row for row in rows if optimiser in (None, row.optimiser)), key=distance, default=None)


def task_names(task: str) -> tuple[str, str]:
    """Return a task's own name and that of the original, if it is a synthetic stand-in or has test sets of clients."""
    return task, task.removesuffix("-synthetic").removesuffix("-clients")


def no_row(name: str, task: str, algorithm: str, optimiser: str | None, steps: int | None) -> str:
    """Return the message that these presets have no such row, with the rows or the tasks that they have."""
    asked = ", ".join(str(part) for part in (task, algorithm, optimiser, f"K={steps}" if steps else None) if part)
    rows = [row for row in presets(name) if row.task in task_names(task)]
    have = sorted({f"{row.algorithm} {row.optimiser} K={row.local_steps}" for row in rows})
    others = f"nothing for this task, only for {', '.join(sorted({row.task for row in presets(name)}))}"
    return f"preset {name} has no settings for {asked}; it has: {', '.join(have) or others}"


def known_name(text: str) -> str:
    """Return a name as presets spell it: ours in lower case, file.py:Class as the user wrote it."""
    return text if ":" in text else text.lower()


def preset_of(task: str) -> str | None:
    """Return the name of the default presets of a task."""
    original = task_names(task)[1]
    return next((name for name in PRESETS if any(row.task == original for row in presets(name))), None)


def algorithm_table(algorithm: str, optimiser: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sort flat settings (lr, beta, mu, server_lr, ...) into the algorithm and its optimisers.

    >>> algorithm_table("fedgbo", "sgdm", {"lr": 0.1, "beta": 0.9})
    {'name': 'fedgbo', 'optimiser': {'name': 'sgdm', 'lr': 0.1, 'beta': 0.9}}

    A table under the name of an optimiser's place (`optimiser`, `client`, `server`) goes there as it is. With
    `average`, the algorithm is the base of `Averaged`, with this decay.
    """
    if (average := settings.get("average")) is not None:
        own = {key: value for key, value in settings.items() if key != "average"}
        return {"name": "averaged", "decay": average, "base": algorithm_table(algorithm, optimiser, own)}
    made = find("algorithm", algorithm)
    slots = optimiser_slots(made)
    table: dict[str, Any] = {"name": algorithm}
    if not slots:
        if optimiser is not None:
            raise ConfigError(f"{algorithm} takes no optimiser, so {optimiser} must be left out")
        return table | dict(settings)
    client, server = next(iter(slots)), list(slots)[-1]  # the same slot, unless the server has its own optimiser
    table |= {slot: {"name": name} for slot, name in slot_names(algorithm, optimiser).items()}
    if optimiser not in (None, table[server]["name"]):
        told = " and ".join(dict.fromkeys(kind.__name__ for kind in slots.values())).replace("SGD", "plain SGD", 1)
        raise ConfigError(f"{algorithm} trains with {told}, not {optimiser}; leave the optimiser out")
    inside = {key: settings[key] for key in ("optimiser", *slots) if isinstance(settings.get(key), Mapping)}
    tables = {key if key in slots else server: value for key, value in inside.items()}
    for slot, own in tables.items():
        table[slot]["name"] = own.get("name", table[slot]["name"])
    for key, value in settings.items():
        if key in inside:
            continue
        if key == "lr":
            table[client]["lr"] = value
        elif key == "server_lr" and server != client:
            table[server]["lr"] = value
        elif key in parameters(find("optimiser", table[server]["name"])):
            table[server][key] = value
        elif key in parameters(made) and key not in slots:
            table[key] = int(value) if _takes_whole(get_type_hints(made).get(key), value) else value
        else:
            told = f"it takes {', '.join(accepted_settings(algorithm, table[server]['name']))}"
            raise ConfigError(f"{algorithm} with {table[server]['name']} takes no {key}; {told}")
    return table | {slot: table[slot] | own for slot, own in tables.items()}


def _takes_whole(hint: Any, value: Any) -> bool:
    """Return whether a setting that is read as a float is a whole number."""
    return hint is int or (int in get_args(hint) and isinstance(value, float) and value.is_integer())


def accepted_settings(algorithm: str, optimiser: str | None) -> list[str]:
    """Return the names of the flat settings that an algorithm with this optimiser takes."""
    slots = slot_names(algorithm, optimiser)
    accepted = [key for name in slots.values() for key in parameters(find("optimiser", name))]
    own = parameters(find("algorithm", algorithm))
    accepted += [key for key in own if key not in (*slots, "objective", "inverse")]
    accepted += ["server_lr"] if len(slots) > 1 else []
    accepted += ["average"] if "base" not in accepted else []
    return list(dict.fromkeys(accepted))


def check_complete(table: Mapping[str, Any]) -> None:
    """Raise if a table of `algorithm_table` lacks settings; the message shows how to give them."""
    if table["name"] == "averaged" and isinstance(base := table.get("base"), Mapping) and "name" in base:
        table = base
    slots = [key for key in optimiser_slots(find("algorithm", table["name"])) if isinstance(table.get(key), Mapping)]
    messages = []
    for kind, inner in [("algorithm", table), *(("optimiser", table[slot]) for slot in slots)]:
        lacking = [key for key, must in parameters(find(kind, inner["name"])).items() if must and key not in inner]
        server = len(slots) > 1 and inner is table[slots[-1]]
        keys = ["server_lr" if server and key == "lr" else key for key in lacking]
        examples = " ".join(f"{key}={EXAMPLES[key]}" for key in keys if key in EXAMPLES)
        who = table["name"] if inner is table else f"{table['name']}: optimiser {inner['name']}"
        said = f"{who} needs {', '.join(keys)}"
        messages += [f"{said}; for example: {examples}" if examples else said] if keys else []
    if messages:
        raise ConfigError("; ".join(messages))


def optimiser_slots(made: Any) -> dict[str, type[Optimiser]]:
    """Return the arguments of a class that are optimisers, in order: the client's, then the server's."""
    hints = get_type_hints(made)
    kinds = {key: hints.get(key) for key in parameters(made)}
    return {key: kind for key, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Optimiser)}


def slot_names(algorithm: str, optimiser: str | None = None) -> dict[str, str]:
    """Return the optimisers of an algorithm, the client's first; `optimiser`, or sgdm, is for a slot that takes any.

    >>> slot_names("fedadam"), slot_names("fedgbo"), slot_names("mfl", "adam")
    ({'client': 'sgd', 'server': 'adam'}, {'optimiser': 'sgdm'}, {'optimiser': 'adam'})
    """
    slots = optimiser_slots(find("algorithm", algorithm))
    return {slot: optimiser or "sgdm" if kind is Optimiser else name_of(kind) for slot, kind in slots.items()}


def takes_optimiser(algorithm: str) -> bool:
    """Return whether the algorithm accepts any optimiser; the others train with plain SGD."""
    return Optimiser in optimiser_slots(find("algorithm", algorithm)).values()


def _parse(text: str, where: str) -> list[Preset]:
    reader = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    if list(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(f"{where} is not a preset file; its first line must be {','.join(COLUMNS)}")
    rows = []
    for number, row in enumerate(reader, start=1):
        try:
            task, algorithm, optimiser = (known_name(row[column]) for column in COLUMNS[:3])
            pairs = (part.strip().partition("=") for part in row["Settings"].split(","))
            settings = {SPELLINGS.get(key, key): float(value) for key, _, value in pairs}
            rows.append(Preset(task, algorithm, optimiser, int(row["K"]), settings))
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f'{where}: row {number} must be like digits,fedgbo,sgdm,10,"lr=0.1, beta=0.9", not '
                f"{','.join(map(str, row.values()))}"
            ) from error
    return rows


def _digits(value: float) -> str:
    """Write a number with six digits, or with all that it needs."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
