"""Figures 1, 2 and 3 as curves; reports/charts.py draws them."""

from collections.abc import Callable
from dataclasses import dataclass

from fedgbo.experiments.paper.measured import algorithm_title, by_key, key_of, optimiser_title, takes_optimiser, titles
from fedgbo.experiments.survey import Results
from fedgbo.reports.curves import Curve, curve
from fedgbo.reports.load import group_runs
from fedgbo.runs.record import Record

OPTIMISERS = ("rmsprop", "sgdm", "adam")


@dataclass(frozen=True)
class Figure:
    """How a figure is made of runs, and what its axes and columns are called."""

    about: str
    curves: Callable[[Results], list[Curve]]
    value: str  # on the y axis
    factor: float  # from records to the y axis
    names: tuple[str, str, str, str]  # of row, column, series and value in the CSV file


def cosine(record: Record) -> float | None:
    """Return the mean pairwise cosine distance of the rounds since the last record, where it was measured."""
    return None if record.drift is None else record.drift.get("cosine")


def drift_curves(results: Results) -> list[Curve]:
    """Figure 1: a panel for each task, a curve for each beta."""
    groups = group_runs(results.finished)
    betas = {id(group): group.runs[0].config.algorithm["optimiser"]["beta"] for group in groups}
    made = []
    for name, task in titles(key_of(group.runs[0].config) for group in groups).items():
        mine = [group for group in groups if key_of(group.runs[0].config)[0] == name]
        for group in sorted(mine, key=lambda group: betas[id(group)]):
            beta = betas[id(group)]
            label = f"β = {beta:g}" + (" (FedAvg)" if beta == 0 else "")
            made.append(curve(group.runs, cosine, row="", column=task.title, series=label))
    return made


def accuracy_curves(results: Results) -> list[Curve]:
    """Figures 2 and 3: a row for each task, a column for each optimiser; algorithms without one are in all columns."""
    groups = by_key(results)
    used = [name for name in OPTIMISERS if any(key[3] == name for key in groups)] or [""]
    made = []
    for name, task in titles(groups).items():
        for optimiser in used:
            for (where, _, algorithm, own), group in groups.items():
                if where == name and (own == optimiser or not takes_optimiser(algorithm)):
                    column = optimiser_title(optimiser) if optimiser else ""
                    series = algorithm_title(algorithm)
                    made.append(curve(group.runs, lambda r: r.accuracy, row=task.title, column=column, series=series))
    return made


_ACCURACY = (accuracy_curves, "test accuracy (%)", 100.0, ("task", "optimiser", "algorithm", "accuracy"))

FIGURES: dict[str, Figure] = {
    "figure1": Figure(
        "Mean pairwise cosine distance of a round's client models, FedGBO with SGDm, for several beta.",
        drift_curves, "cosine distance", 1.0, ("panel", "task", "beta", "cosine_distance"),
    ),
    "figure2": Figure("Accuracy against rounds, all tasks, optimisers and algorithms, K = 10.", *_ACCURACY),
    "figure3": Figure("Accuracy against rounds, all tasks, optimisers and algorithms, K = 50.", *_ACCURACY),
}  # fmt: skip
