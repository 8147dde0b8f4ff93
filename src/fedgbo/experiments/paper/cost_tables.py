"""Tables 1, 3, 6, 7 and 8: the paper's tasks, and what a client downloads, uploads, holds and computes.

Our values are computed from the algorithms. Printed values, sizes of tasks and captions are data files in `published/`.
"""

import csv
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import Any

import torch

from fedgbo.algorithms import ALGORITHMS, PAPER
from fedgbo.core import FederatedAlgorithm, Optimiser
from fedgbo.costs.closed import Workload, client_cost, exchange
from fedgbo.costs.operations import FIXED, MOVING
from fedgbo.experiments.presets import optimiser_slots, slot_names
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.table import Cell, Table
from fedgbo.runs.describe import build, parameters

NUMBER = 0.5  # every hyperparameter of an example: costs do not depend on hyperparameters
SPECIAL: Mapping[str, Any] = {  # arguments that are no such numbers
    "tau": 2,
    "personal_part": [[0, 2]],
    "base": {"name": "fedavg", "optimiser": {"name": "sgd", "lr": NUMBER}},
}
ORDER = ("fedgbo", "mimelite", "mfl", "adaptivefedopt", "fedavg", "fedmax", "fedprox", "mimexlite")
OPTIMISER_ORDER = ("rmsprop", "sgdm", "adam", "sgd")
WRONG = (("table7", "sent140", "mimelite", "rmsprop"), ("table7", "sent140", "mimelite", "sgdm"))  # in the paper


@dataclass(frozen=True)
class PaperTask:
    """One of the paper's four tasks."""

    title: str
    type: str
    classes: int
    model: str
    clients: int
    clients_per_round: int  # M
    batch_size: int  # B
    mean_samples: int  # n
    params: int  # |x|
    macs: int  # F

    def workload(self) -> Workload:
        return Workload(self.params, self.macs, self.batch_size, self.mean_samples)


def tasks() -> dict[str, PaperTask]:
    """Return the tasks by our names, in the paper's order."""
    return {name: PaperTask(**entry) for name, entry in tomllib.loads(_read("sizes.toml")).items()}


def printed_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a printed table."""
    return list(csv.DictReader(line for line in _read(f"{name}.csv").splitlines() if not line.startswith("#")))


def printed_row(table: str, **wanted: str) -> dict[str, str]:
    """Return the printed row with these values, or an empty one."""
    return next((row for row in printed_rows(table) if wanted.items() <= row.items()), {})


def caption(name: str) -> dict[str, Any]:
    """Return the title, the remarks and the notes of a table."""
    entry: dict[str, Any] = tomllib.loads(_read("captions.toml"))[name]
    return entry


def captioned(name: str, columns: Iterable[str], rows: Iterable[tuple[Cell, ...]], **more: Any) -> Table:
    """Return a table with its title and remarks."""
    texts = caption(name)
    return Table(name, texts["title"], tuple(columns), tuple(rows), remarks=tuple(texts["remarks"]), **more)


def _read(name: str) -> str:
    return files("fedgbo.experiments.paper").joinpath("published", name).read_text(encoding="utf-8")


def example_optimiser(name: str) -> Optimiser:
    """Build an optimiser with arbitrary numbers."""
    built: Optimiser = build("optimiser", {"name": name, **_required(OPTIMISERS[name])})
    return built


def example(algorithm: str, optimiser: str = "sgdm") -> FederatedAlgorithm:
    """Build an algorithm with arbitrary numbers; `optimiser` is for algorithms that take any.

    >>> example("fedprox")
    FedProx(objective=(), optimiser=SGD(lr=0.5), mu=0.5)
    """
    names = slot_names(algorithm, optimiser)
    slots = {slot: {"name": name, **_required(OPTIMISERS[name])} for slot, name in names.items()}
    built: FederatedAlgorithm = build("algorithm", {"name": algorithm, **_required(ALGORITHMS[algorithm]), **slots})
    return built


def _required(made: Any) -> dict[str, Any]:
    """Return arbitrary values of the arguments that must be given."""
    return {key: SPECIAL.get(key, NUMBER) for key, needed in parameters(made).items() if needed}


def table1() -> Table:
    """Per-client download, upload and memory of every algorithm, in units of the model x and the statistics s."""
    printed = {row["Algorithm"]: row for row in printed_rows("table1")}
    names = {ALGORITHMS[name].__name__: name for name in (*PAPER, "scaffold")}
    columns, lines = ("Algorithm", "Approach", "Download", "Upload", "Memory"), []
    for title in dict.fromkeys([*printed, *names]):
        name, row = names[title], printed.get(title, {})
        approach = row.get("Approach", (ALGORITHMS[name].__doc__ or "").splitlines()[0].rstrip("."))
        ours = symbols(example(name, "adam"))
        cells = [Cell.compared(value, row.get(column)) for column, value in zip(columns[2:], ours, strict=True)]
        lines.append((Cell(title), Cell(approach), *cells))
    return captioned("table1", columns, lines, brief=("Algorithm", "Download", "Upload", "Memory"))


def symbols(algorithm: FederatedAlgorithm) -> tuple[str, str, str]:
    """Return download, upload and memory in the paper's notation; vectors that are neither x nor s are gradients."""
    asked = exchange(algorithm, 1)
    known = {"params": "x", "start": "x"}  # start: the copy of the model that a client keeps
    known |= {f"stats.{name}": "s" for name in algorithm.init(torch.ones(1)).stats}
    down, up, held = ([known.get(vector, "∇f") for vector in part] for part in (asked.down, asked.up, asked.memory))
    models = sum(symbol != "s" for symbol in held)
    memory = f"{'' if models == 1 else models}|x|{' + |s|' if 's' in held else ''}"
    return ", ".join(dict.fromkeys(down)), ", ".join(dict.fromkeys(up)), f"O({memory})"


def table3() -> Table:
    """The four tasks, their models and clients."""
    printed = {row["Task"]: row for row in printed_rows("table3")}
    lines = []
    for t in tasks().values():
        ours = (t.title, t.type, t.classes, t.model, t.clients, t.clients_per_round, t.mean_samples)
        pairs = zip(map(_grouped, ours), map(_grouped, printed[t.title].values()), strict=True)
        cells = [Cell.compared(value, said) for value, said in pairs]
        sizes = [Cell(f"{size:,}", exact=size) for size in (t.batch_size, t.params, t.macs)]
        lines.append((Cell(t.title), *cells[1:], *sizes))
    columns = (*next(iter(printed.values())), "Batch size B", "Parameters |x|", "Multiply-adds F")
    brief = ("Task", "Model", "Total clients", "Sampled clients per round", "Parameters |x|")
    return captioned("table3", columns, lines, brief=brief)


def _grouped(value: object) -> str:
    """Return a text, or a number with commas between thousands."""
    text = str(value)
    return f"{int(text):,}" if text.isdecimal() else text


def table6() -> Table:
    """Operations per parameter and local step, with fixed and with moving statistics."""
    lines = []
    for row in printed_rows("table6"):
        optimiser = type(example_optimiser(row["Optimiser"].lower()))
        counts = ((FIXED[optimiser], row["Fixed"]), (MOVING[optimiser], row["Moving"]))
        lines.append((Cell(row["Optimiser"]), *(Cell.compared(str(count), printed) for count, printed in counts)))
    return captioned("table6", ("Optimiser", "Fixed", "Moving"), lines)


def table7() -> Table:
    """FLOPs per client and round, K = 10."""
    return _flops_table("table7", 10)


def table8() -> Table:
    """FLOPs per client and round, K = 50."""
    return _flops_table("table8", 50)


def _flops_table(name: str, local_steps: int) -> Table:
    """Tables 7 and 8, by the formulas of Appendix B."""
    columns = ("Task", "Algorithm", *(OPTIMISERS[optimiser].__name__ for optimiser in OPTIMISER_ORDER))
    lines = []
    for (task_name, task), algorithm in product(tasks().items(), ORDER):
        title = ALGORITHMS[algorithm].__name__
        printed = printed_row(name, Task=task.title, Algorithm=title)
        client_slot = next(iter(optimiser_slots(ALGORITHMS[algorithm]).values()))
        cells = [Cell(task.title), Cell(title)]
        for optimiser in OPTIMISER_ORDER:
            if (optimiser == "sgd") == (client_slot is Optimiser):  # plain SGD only where there is no choice
                cells.append(Cell(""))
                continue
            flops = client_cost(example(algorithm, optimiser), task.workload(), local_steps).flops
            said = printed.get(OPTIMISERS[optimiser].__name__) or None
            note = caption(name)["note"] if (name, task_name, algorithm, optimiser) in WRONG else ""
            cells.append(Cell.compared(significant(flops / 1e8), said, note=note, exact=flops))
        lines.append(tuple(cells))
    return captioned(name, columns, lines, labels=2)


def significant(value: float, figures: int = 3) -> str:
    """Write a number with so many significant figures and no exponent."""
    rounded = float(f"{value:.{figures - 1}e}")
    return f"{rounded:.{max(0, figures - 1 - math.floor(math.log10(rounded)))}f}"
