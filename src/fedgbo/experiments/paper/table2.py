"""Table 2: the optimisers' three steps, rendered from their own docstrings."""

import inspect
import re

import torch

from fedgbo.core.errors import ConfigError
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.paper.examples import example_optimiser
from fedgbo.experiments.paper.formula import same
from fedgbo.experiments.paper.published import rows
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.table import UNEXPLAINED, Cell, Table

STEPS = {"Update": "U", "Tracking": "T", "Inverse": "I"}
SQUARED = (
    "the print tracks v with g where it must be g²: v is a mean of squared gradients, and with g it could turn "
    "negative, so that the update would have no root. The published experiments used g²."
)


def table2() -> Table:
    """Update, tracking and inverse steps of the paper's optimisers."""
    return Table(
        name="table2",
        title="Table 2: update (U), tracking (T) and inverse (I) steps",
        columns=("Optimiser", "Statistics", "Update", "Tracking", "Inverse"),
        rows=tuple(_row(printed) for printed in rows("table2")),
        remarks=(
            "η is the learning rate, β, β₁ and β₂ decay rates, g a gradient, ε a constant for stability, K the number "
            "of local steps, x_t and x_{t+1} the global model before and after a round.",
            "Ours are the optimisers' docstrings. Formulas agree where they mean the same, however they are written.",
        ),
        stacked=True,
    )


def steps(optimiser: type[Optimiser]) -> dict[str, str]:
    """Return the lines U, T and I of an optimiser's docstring.

    >>> steps(OPTIMISERS["sgdm"])["U"]
    'η (β m + (1 - β) g)'
    """
    found = dict(re.findall(r"^([UTI]): (.+)$", inspect.cleandoc(optimiser.__doc__ or ""), flags=re.MULTILINE))
    missing = [letter for letter in STEPS.values() if letter not in found]
    if missing:
        raise ConfigError(f"{optimiser.__name__}'s docstring has no line '{missing[0]}: ...'")
    return found


def _row(printed: dict[str, str]) -> tuple[Cell, ...]:
    name = printed["Optimiser"].lower()
    ours = steps(OPTIMISERS[name])
    statistics = ", ".join(example_optimiser(name).init(torch.ones(1)))
    cells = [_compared(column, ours[letter], printed[column]) for column, letter in STEPS.items()]
    return Cell(printed["Optimiser"]), Cell.compared(statistics, printed["Statistics"]), *cells


def _compared(column: str, ours: str, published: str) -> Cell:
    if same(ours, published):
        return Cell(ours, published)
    squared = column == "Tracking" and ours.replace("g²", "g") == published
    return Cell(ours, published, SQUARED if squared else UNEXPLAINED, differs=True)
