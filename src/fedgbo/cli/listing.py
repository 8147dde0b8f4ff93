"""`fedgbo list`: what can be named, and what each algorithm sends, keeps and costs."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from fedgbo.cli import options as opt
from fedgbo.cli.console import out, print_json
from fedgbo.core import AffineOptimiser
from fedgbo.costs.trace import trace
from fedgbo.experiments.paper.cost_tables import example, example_optimiser
from fedgbo.experiments.presets import PRESETS, presets
from fedgbo.runs.describe import CATALOGUES, parameters

CITED = re.compile(r"\(([^,()]+),[^()]*?(\d{4})\)")  # the first author, and the year
COLUMNS = {"down": "down", "up": "up", "kept": "keeps", "gradients": "gradients", "paper": "paper"}
SHORT = {  # what fits a terminal of 80 columns; --json has the long words
    "nothing": "-",
    " number": "",
    "a part of |x|": "part",
    "loss of all samples": "losses",
    "all samples": "all",
}
LEGEND = """
A client's round: what it downloads and uploads, keeps from round to round, and
computes. |x| is the size of the model; part: a part of the model; + 1: and one
number. Gradients: K, one for each local step; all: one on all samples; losses:
the loss of all samples. Measured by running each algorithm, with sgdm if it
takes any optimiser. help(fedgbo.FedCM) has the equations of FedCM;
docs/algorithms.md helps to choose.

your own: --task my_file.py:function, --algorithm my_file.py:Class,
          --optimiser my_file.py:Class"""


def list_everything(as_json: opt.Json = False) -> None:
    """List everything that a setting can name: tasks, algorithms, optimisers, samplers, schedules, presets and more.

    The costs of an algorithm are measured by running it, with sgdm if it takes any optimiser.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {
        kind: {name: _entry(kind, name, made) for name, made in sorted(catalogue.items())}
        for kind, catalogue in CATALOGUES.items()
    }
    found["preset"] = {
        name: {"about": f"{len(rows)} tuned settings", "settings": []}
        for name in sorted(PRESETS)
        if (rows := presets(name))
    }
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        table = Table(title=f"{kind}s", title_justify="left", box=None, show_header=False, padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column()
        for name, entry in entries.items():
            settings = Text(", ".join(entry["settings"]), style="cyan")
            table.add_row(
                name, Text("\n").join([Text(str(entry["about"])), *([settings] if entry["settings"] else [])])
            )
        out.print(table)
        out.print()
    out.print(_costs(found["algorithm"]))
    out.print(LEGEND, markup=False, highlight=False)


def _entry(kind: str, name: str, made: Any) -> dict[str, Any]:
    entry = {"about": _first_sentence(made), "settings": list(parameters(made))}
    if kind == "algorithm":
        costs = vars(trace(example(name)))
        own = _first_sentence(made)
        return {**entry, **costs, "paper": own if CITED.search(own) else _first_sentence(inspect.getmodule(made))}
    if kind == "optimiser":
        built = example_optimiser(name)
        statistics = list(built.init(torch.ones(2)))
        return {**entry, "statistics": statistics, "inverse": isinstance(built, AffineOptimiser)}
    return entry


def _costs(algorithms: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of what a client of each algorithm sends, keeps and computes in a round."""
    table = Table(title="costs of algorithms", title_justify="left", box=None, padding=(0, 1))
    for title in ("algorithm", *COLUMNS.values()):
        table.add_column(title, no_wrap=title != "paper")
    for name, entry in algorithms.items():
        cells = {key: str(entry[key]) for key in COLUMNS}
        for long, short in SHORT.items():
            cells |= {key: cells[key].replace(long, short) for key in ("up", "kept", "gradients")}
        table.add_row(name, *(cells | {"paper": _citation(cells["paper"])}).values())
    return table


def _citation(text: str) -> str:
    """Return authors and year of a paper.

    >>> _citation("APFL (Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020), fixed")
    'Deng et al. 2020'
    >>> _citation("Averages (Polyak and Juditsky, Acceleration of Stochastic Approximation, 1992).")
    'Polyak and Juditsky 1992'
    """
    cited = CITED.search(text)
    if cited is None:
        return ""
    first = cited[1].strip()
    return f"{first if 'et al' in first or ' and ' in first else f'{first} et al.'} {cited[2]}"


def _first_sentence(thing: Any) -> str:
    paragraph = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.split(r"(?<!et al)\.(?= [A-Z]|$)", paragraph)[0]
