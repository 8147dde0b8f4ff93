"""The paper's tables, recomputed and held against the print."""

from collections.abc import Callable

from fedgbo.experiments.paper.table1 import table1
from fedgbo.experiments.paper.table2 import table2
from fedgbo.experiments.paper.table3 import table3
from fedgbo.experiments.paper.table6 import table6
from fedgbo.experiments.paper.table7 import table7, table8
from fedgbo.reports.table import Cell, Footnote, Table

TABLES: dict[str, Callable[[], Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table6": table6,
    "table7": table7,
    "table8": table8,
}

__all__ = ["TABLES", "Cell", "Footnote", "Table"]
