"""Tuned settings, kept as data: which lr, beta, ... for which task, algorithm, optimiser and K."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, get_type_hints

from fedgbo.core.errors import ConfigError, unknown
from fedgbo.core.optimiser import Optimiser
from fedgbo.runs.describe import find, parameters

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


def presets(name: str) -> list[Preset]:
    """Return all rows of a preset file."""
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    text = files("fedgbo.experiments").joinpath("presets", PRESETS[name]).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [
        Preset(
            task=row["Dataset"].lower(),
            algorithm=row["Algorithm"].lower(),
            optimiser=row["Optimiser"].lower(),
            local_steps=int(row["K"]),
            settings=_settings(row["Settings"]),
        )
        for row in rows
    ]


def preset(
    name: str, task: str, algorithm: str, optimiser: str | None = None, local_steps: int | None = None
) -> Preset | None:
    """Return the row that fits best; a stand-in takes its task's.

    An optimiser left open is SGD or SGDm, if they are there. Where no row has this K, the nearest is taken.
    """
    rows = [row for row in presets(name) if row.task == task.removesuffix("-synthetic") and row.algorithm == algorithm]
    rows = [row for row in rows if optimiser in (None, row.optimiser)]
    order = ("sgd", "sgdm", "rmsprop", "adam")
    away = local_steps or 0
    return min(rows, key=lambda row: (order.index(row.optimiser), abs(row.local_steps - away)), default=None)


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


def _settings(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {SPELLINGS.get(key, key): float(value) for key, _, value in pairs}
