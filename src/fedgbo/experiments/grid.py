"""Grids of runs as a TOML file has them: settings that may be lists, their product, and what is left out of it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, unknown
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.compare import parse_entry
from fedgbo.experiments.presets import optimiser_slots
from fedgbo.experiments.request import SETTINGS, Request
from fedgbo.runs.config import Table
from fedgbo.runs.describe import find

PLURALS = {"tasks": "task", "algorithms": "algorithm", "optimisers": "optimiser", "seeds": "seed"}
SELECTORS = (*PLURALS, "local_steps")
LISTS = ("tasks", "local_steps", "rounds", "algorithms", "optimisers", *SETTINGS, "seeds")  # may be lists: the product
GRID_KEYS = (*PLURALS, *(key for key in Request.model_fields if key not in PLURALS.values()))


def check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Raise on a key that is not known, with the nearest one that is."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: " + unknown("setting", key, known))


def expand(grid: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the product of a grid's lists, as tables that a Request is made of.

    An optimiser goes only with the algorithms that take one. The order is that of `LISTS`, seeds varying fastest, and
    does not depend on the order of keys in a file.
    """
    lists = {key: _values(key, grid[key]) for key in LISTS if key in grid}
    shared = {key: value for key, value in grid.items() if key not in lists}
    for values in product(*lists.values()):
        entry = {PLURALS.get(key, key): value for key, value in zip(lists, values, strict=True)}
        if isinstance(entry.get("algorithm"), str):
            entry["algorithm"], named = parse_entry(entry["algorithm"])
            takes_one = Optimiser in optimiser_slots(find("algorithm", entry["algorithm"])).values()
            entry["optimiser"] = named or (entry.get("optimiser") if takes_one else None)
        yield shared | {key: value for key, value in entry.items() if value is not None}


def matches(entry: Mapping[str, Any], selector: Mapping[str, Any]) -> bool:
    """Return whether a run is one of those that a table of [[exclude]] or [[override]] means."""
    return all(
        key not in selector or _name(entry.get(PLURALS.get(key, key))) in map(_name, _values(key, selector[key]))
        for key in (*SELECTORS, "rounds")
    )


def _values(key: str, value: Any) -> list[Any]:
    if key == "seeds" and not isinstance(value, list):
        whole("seeds", value)
        return list(range(value))
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(f"{key} is an empty list; name at least one, or leave it out")
    return values


def _name(value: Any) -> Any:
    """Return what is compared: of a table its name, and of a stand-in its task's."""
    named = value.get("name") if isinstance(value, Mapping) else value
    return named.lower().removesuffix("-synthetic") if isinstance(named, str) else named
