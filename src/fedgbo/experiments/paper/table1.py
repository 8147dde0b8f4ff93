"""Table 1: what a client downloads, uploads and holds, read off the algorithms."""

from collections.abc import Sequence, Set

import torch

from fedgbo.algorithms import ALGORITHMS
from fedgbo.core.algorithm import FederatedAlgorithm
from fedgbo.costs.probe import probe
from fedgbo.experiments.paper.examples import example, richest_optimiser
from fedgbo.experiments.paper.published import rows
from fedgbo.reports.table import Cell, Table


def table1() -> Table:
    """Per-client download, upload and memory of every algorithm, in units of the model x and the statistics s."""
    printed = {row["Algorithm"]: row for row in rows("table1")}
    titles = {made.__name__: name for name, made in ALGORITHMS.items()}
    ordered = [*printed, *(title for title in titles if title not in printed)]
    return Table(
        name="table1",
        title="Table 1: per-client download, upload and memory",
        columns=("Algorithm", "Approach", "Download", "Upload", "Memory"),
        rows=tuple(_row(title, titles[title], printed.get(title, {})) for title in ordered),
        remarks=(
            "x is the model, s the optimiser's statistics (as large as x for SGDm and RMSProp, twice that for Adam), "
            "∇f a gradient as large as x.",
            "Read off what the algorithms send and hold. MimeXlite is in the paper's Section 5, not in its Table 1.",
        ),
    )


def symbols(algorithm: FederatedAlgorithm) -> tuple[str, str, str]:
    """Return download, upload and memory in the paper's notation.

    >>> symbols(example("mimelite", "adam"))
    ('x, s', 'x, ∇f', 'O(2|x| + |s|)')
    """
    asked = probe(algorithm, 1)
    statistics = {f"stats.{name}" for name in algorithm.init(torch.ones(1)).stats}
    down, up, held = (_symbols(vectors, statistics) for vectors in (asked.down, asked.up, asked.memory))
    models = sum(symbol != "s" for symbol in held)
    memory = "|x|" if models == 1 else f"{models}|x|"
    return _listed(down), _listed(up), f"O({memory}{' + |s|' if 's' in held else ''})"


def _row(title: str, name: str, printed: dict[str, str]) -> tuple[Cell, ...]:
    ours = symbols(example(name, richest_optimiser(name)))
    cells = [
        Cell.compared(value, printed.get(column))
        for column, value in zip(("Download", "Upload", "Memory"), ours, strict=True)
    ]
    return (Cell(title), Cell(printed.get("Approach", _approach(name))), *cells)


def _approach(name: str) -> str:
    return (ALGORITHMS[name].__doc__ or "").splitlines()[0].rstrip(".")


def _symbols(vectors: Sequence[str], statistics: Set[str]) -> list[str]:
    """Name each vector: the model x (or the copy of it that a client keeps), a statistic s, or a gradient."""
    models = {"params": "x", "start": "x"}
    return [models.get(vector) or ("s" if vector in statistics else "∇f") for vector in vectors]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
