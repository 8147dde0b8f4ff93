"""The paper's tables and figures, computed again and compared with the printed values."""

from collections.abc import Callable

from fedgbo.experiments.paper.cost_tables import table1, table3, table6, table7, table8
from fedgbo.experiments.paper.formula_table import table2
from fedgbo.reports.table import Table

TABLES: dict[str, Callable[[], Table]] = {
    make.__name__: make for make in (table1, table2, table3, table6, table7, table8)
}
