"""Table 5: is the full-batch gradient of Mimelite worth its cost? MimeXlite takes a minibatch instead."""

from fedgbo.experiments.experiment import Experiment
from fedgbo.experiments.paper.measured import algorithm_title, by_key, lost, optimiser_title
from fedgbo.experiments.paper.published import rows
from fedgbo.experiments.survey import Results, heading
from fedgbo.reports.comparison import accuracy_cell, summarise
from fedgbo.reports.load import Group
from fedgbo.reports.table import Cell, Table

ALGORITHMS = ("fedgbo", "mimelite", "mimexlite")
OPTIMISERS = ("rmsprop", "sgdm", "adam")
REMARK = "The highest mean over seeds, ± half of its 95% Student's t interval."


def table5(results: Results, experiment: Experiment) -> Table:
    """Best accuracy of FedGBO, Mimelite and MimeXlite on Shakespeare, K = 10 and 50."""
    groups, diverged = by_key(results), lost(results)
    there = {key[1:4:2] for key in (*groups, *diverged)}  # K and optimiser
    lines = []
    for steps in sorted({steps for steps, _ in there}):
        for optimiser in (optimiser for optimiser in OPTIMISERS if (steps, optimiser) in there):
            title = optimiser_title(optimiser)
            printed = next((row for row in rows("table5") if (row["K"], row["Optimiser"]) == (str(steps), title)), {})
            keys = {name: ("shakespeare", steps, name, optimiser) for name in ALGORITHMS}
            cells = [
                _cell(groups.get(key), diverged.get(key, 0), printed.get(algorithm_title(name)))
                for name, key in keys.items()
            ]
            lines.append((Cell(str(steps)), Cell(title), *cells))
    columns = ("K", "Optimiser", *map(algorithm_title, ALGORITHMS))
    return Table("table5", heading(experiment, results), columns, tuple(lines), 2, (REMARK,), measured=True)


def _cell(group: Group | None, diverged: int, printed: str | None) -> Cell:
    if group is None:
        return Cell("diverged" if diverged else "-", printed)
    cell = accuracy_cell(summarise([group])[0], printed)
    return Cell(f"{cell.ours}, {diverged} diverged", printed, exact=cell.exact) if diverged else cell
