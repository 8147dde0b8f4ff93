"""`fedgbo list`: what can be named, and what each algorithm sends, keeps and costs."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from fedgbo.cli import options as opt
from fedgbo.cli.console import out, print_json, print_whole
from fedgbo.core import AffineOptimiser
from fedgbo.costs.trace import trace
from fedgbo.experiments.presets import PRESETS, own_optimiser, presets
from fedgbo.runs.describe import CATALOGUES, build, parameters

NUMBER = 0.5  # for settings that must be given, where any number will do
SPECIAL: Mapping[str, Any] = {  # settings that are no such numbers
    "tau": 2,
    "personal_part": [[0, 2]],
    "base": {"name": "fedavg", "optimiser": {"name": "sgd", "lr": NUMBER}},
}
COLUMNS = {"down": "download", "up": "upload", "kept": "clients keep", "gradients": "gradients", "paper": "from"}


def list_everything(as_json: opt.Json = False) -> None:
    """Show the tasks, algorithms, optimisers, objective terms, schedules and presets that can be named.

    What an algorithm sends, keeps and computes is found by running it, with sgdm where it takes any optimiser.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {
        kind: {name: _entry(kind, name, made) for name, made in sorted(catalogue.items())}
        for kind, catalogue in CATALOGUES.items()
    }
    found["preset"] = {
        name: {"about": f"{len(presets(name))} tuned settings", "settings": []} for name in sorted(PRESETS)
    }
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        table = Table(title=f"{kind}s", title_justify="left", box=None, show_header=False, padding=(0, 2))
        for name, entry in entries.items():
            table.add_row(name, str(entry["about"]), ", ".join(entry["settings"]))
        print_whole(table)
        out.print()
    print_whole(_costs(found["algorithm"]))
    out.print("\nyour own: --task my_file.py:function, --algorithm my_file.py:Class, --optimiser my_file.py:Class")


def _entry(kind: str, name: str, made: Any) -> dict[str, Any]:
    entry = {"about": _first_line(made), "settings": list(parameters(made))}
    if kind == "algorithm":
        costs = vars(trace(build("algorithm", _example(name, made))))
        return {**entry, **costs, "paper": _first_line(inspect.getmodule(made)).rstrip(".")}
    if kind == "optimiser":
        built = build("optimiser", {"name": name, **_required(made)})
        statistics = list(built.init(torch.ones(2)))
        return {**entry, "statistics": statistics, "inverse": isinstance(built, AffineOptimiser)}
    return entry


def _example(name: str, made: Any) -> dict[str, Any]:
    """Return a table of the algorithm with arbitrary numbers."""
    table: dict[str, Any] = {"name": name}
    last = own_optimiser(name) or "sgdm"
    slots = [key for key in parameters(made) if key in ("optimiser", "client", "server")]
    for slot in slots:
        optimiser = last if slot == slots[-1] else "sgd"
        table[slot] = {"name": optimiser, **_required(CATALOGUES["optimiser"][optimiser])}
    return table | {key: value for key, value in _required(made).items() if key not in slots}


def _required(made: Any) -> dict[str, Any]:
    return {key: SPECIAL.get(key, NUMBER) for key, needed in parameters(made).items() if needed}


def _costs(algorithms: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of what a client of each algorithm sends, keeps and computes in a round."""
    table = Table(title="a client's round, |x| being the model", title_justify="left", box=None, padding=(0, 2))
    for title in ("algorithm", *COLUMNS.values()):
        table.add_column(title)
    for name, entry in algorithms.items():
        table.add_row(name, *(str(entry[key]) for key in COLUMNS))
    return table


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
