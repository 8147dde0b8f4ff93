"""What docs/results.md says of CIFAR100 with RMSProp and Adam and with K = 50: a row for every run."""

from collections.abc import Sequence

from results_tasks import MILESTONES, accuracies

from fedgbo.reports.cost_table import percent
from fedgbo.reports.load import RunData, group_runs
from fedgbo.reports.table import Cell, Table, markdown

OTHERS = "cifar100-others"


def others_part(runs: Sequence[RunData]) -> str:
    """Return a table with the best accuracy of every run, and its accuracy after some rounds."""
    if not runs:
        return "No runs yet."
    end = max(run.records[-1].round for run in runs)
    marks = [t for t in MILESTONES if t <= end]
    rows = [(*_cells(run), *accuracies(group_runs([run])[0], marks)) for run in sorted(runs, key=_place)]
    columns = ("Algorithm", "K", "Settings", "Rounds", "Best (%)", "At round", *(f"After {t} (%)" for t in marks))
    seeds = {run.config.seed for run in runs}
    title = f"CIFAR100 with other optimisers and K, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
    return markdown(Table(OTHERS, title, columns, tuple(rows), measured=True)).strip()


def _place(run: RunData) -> tuple[int, str, str]:
    algorithm = run.config.algorithm
    return run.config.local_steps, str(algorithm["optimiser"]["name"]), str(algorithm["name"])


def _cells(run: RunData) -> tuple[Cell, ...]:
    best = max(run.records, key=lambda record: record.accuracy or 0.0)
    settings = {key: value for key, value in run.config.algorithm["optimiser"].items() if key != "name"}
    said = ", ".join(f"{key}={value:g}" for key, value in settings.items())
    length = f"{run.records[-1].round}{', diverged' if run.status == 'diverged' else ''}"
    cells = (run.config.label, run.config.local_steps, said, length, percent(best.accuracy or 0.0, None), best.round)
    return tuple(Cell(str(cell)) for cell in cells)
