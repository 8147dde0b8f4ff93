"""Tables 4 and 5 and Figures 1, 2 and 3: the paper's experiments, and the tables and curves made from their runs.

The experiments are the TOML files in this folder. Table 4 computes costs as the paper does: upload is in GiB of float32
over all sampled clients; FLOPs are Table 7's value of one client and round, to three significant figures, times M and
rounds.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product

from fedgbo.algorithms import ALGORITHMS
from fedgbo.experiments.experiment import Changes, Experiment, make_experiment, only
from fedgbo.experiments.paper.cost_tables import PaperTask, caption, printed_row, significant, tasks
from fedgbo.experiments.presets import takes_optimiser
from fedgbo.experiments.results import Results, heading
from fedgbo.optimisers import OPTIMISERS
from fedgbo.reports.comparison import Effort, summarise
from fedgbo.reports.cost_table import PAIRED, P, accuracy_cell, paired_cells
from fedgbo.reports.curves import Curve, curve
from fedgbo.reports.load import Group, group_runs
from fedgbo.reports.table import Cell, Table
from fedgbo.runs.config import RunConfig

Key = tuple[str, int, str, str]  # task, K, algorithm, optimiser

OPTIMISER_ORDER = ("rmsprop", "sgdm", "adam")
ORDER4 = ("fedavg", "fedprox", "fedmax", "adaptivefedopt", "mfl", "mimelite", "fedgbo")
COLUMNS4 = (
    "Task", "Algorithm", "Max acc (%)", "Rounds", "Upload (GiB)", "FLOPs (x 10^12)",
    "Rounds to match FedAvg", "Upload to match", "FLOPs to match", "Difference from FedAvg", "p",
)  # fmt: skip
BRIEF4 = ("Task", "Algorithm", "Max acc (%)", "Rounds to match FedAvg", "Difference from FedAvg")


def paper_experiment(
    name: str, changes: Changes, task_names: Sequence[str] = (), optimisers: Sequence[str] = ()
) -> Experiment:
    """Return the experiment of a figure or a table, or a part of it."""
    text = files("fedgbo.experiments.paper").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return only(make_experiment(tomllib.loads(text), name, changes), task=task_names, optimiser=optimisers)


def key_of(config: RunConfig) -> Key:
    """Return which curve of the paper a run belongs to."""
    optimiser = (config.algorithm.get("server") or config.algorithm["optimiser"])["name"]
    steps = config.local_steps if isinstance(config.local_steps, int) else 0
    return str(config.task["name"]).removesuffix("-synthetic"), steps, str(config.algorithm["name"]), str(optimiser)


def _by_key(results: Results) -> tuple[dict[Key, Group], Counter[Key]]:
    """Return the finished runs, grouped over seeds, and the number of seeds that diverged."""
    groups = {key_of(group.runs[0].config): group for group in group_runs(results.finished)}
    return groups, Counter(key_of(entry.config) for entry in results.diverged)


def table4(results: Results, experiment: Experiment) -> Table:
    """Best accuracy, the upload and FLOPs to reach it, and those to match FedAvg; K = 10, SGDm."""
    groups, diverged = _by_key(results)
    present = {key[0] for key in (*groups, *diverged)}
    texts = caption("table4")
    remarks = [*texts["remarks"], PAIRED.format("accuracy", " in points"), P]
    lines: list[tuple[Cell, ...]] = []
    for name, task in tasks().items():
        remarks += [texts[name]] if name in present and name in texts else []
        by_algorithm = {key[2]: replace(group, label=key[2]) for key, group in groups.items() if key[0] == name}
        lines += _lines4(task, by_algorithm, {key[2]: n for key, n in diverged.items() if key[0] == name})
    title, rows = heading(experiment, results), tuple(lines)
    return Table("table4", title, COLUMNS4, rows, 2, tuple(remarks), measured=True, brief=BRIEF4)


def _lines4(task: PaperTask, groups: dict[str, Group], diverged: dict[str, int]) -> list[tuple[Cell, ...]]:
    rows = {row.label: row for row in summarise([groups[name] for name in ORDER4 if name in groups])}
    highest = max((row.accuracy for row in rows.values()), default=None)
    lines = []
    for name in (name for name in ORDER4 if name in rows or name in diverged):
        title = ALGORITHMS[name].__name__
        label = title + (f" ({diverged[name]} seeds diverged)" if name in diverged else "")
        printed = printed_row("table4", Task=task.title, Algorithm=title)
        cells = [Cell("diverged", printed.get("Accuracy")), *[Cell("-")] * (len(COLUMNS4) - 3)]
        if (row := rows.get(name)) is not None:
            sampled = groups[name].runs[0].config.clients_per_round
            clients = sampled if isinstance(sampled, int) else task.clients_per_round
            match = None if name == "fedavg" else row.match
            cells = [
                accuracy_cell(row, printed.get("Accuracy"), strong=row.accuracy == highest),
                *_effort(row.best, clients, printed.get("Upload"), printed.get("FLOPs")),
                *_effort(match, clients, printed.get("Upload to match"), printed.get("FLOPs to match")),
                *paired_cells(row.versus),
            ]
        lines.append((Cell(task.title), Cell(label), *cells))
    return lines


def _effort(effort: Effort | None, clients: int, upload: str | None, flops: str | None) -> list[Cell]:
    if effort is None:
        return [Cell("-"), Cell("-", upload), Cell("-", flops)]
    times = effort.round * clients
    ours = float(significant(effort.flops / times / 1e8)) * 1e8 * times if times and effort.flops else 0.0
    return [
        Cell(str(effort.round), exact=effort.round),
        Cell(_rounded(effort.upload_bytes / 2**30, 1), upload, exact=effort.upload_bytes),
        Cell(_rounded(ours / 1e12, 1 if ours >= 1e12 else 2), flops, exact=effort.flops),
    ]


def _rounded(value: float, decimals: int) -> str:
    """Round as Table 4 does; a value that would be 0, as at a small scale, keeps two significant figures."""
    text = f"{value:.0f}" if value >= 100 else f"{value:.{decimals}f}"
    return significant(value, 2) if value and not float(text) else text


def table5(results: Results, experiment: Experiment) -> Table:
    """Best accuracy of FedGBO, Mimelite and MimeXlite on Shakespeare, K = 10 and 50."""
    groups, diverged = _by_key(results)
    present = {key[1:4:2] for key in (*groups, *diverged)}  # K and optimiser
    names = {name: ALGORITHMS[name].__name__ for name in ("fedgbo", "mimelite", "mimexlite")}
    lines = []
    for steps, optimiser in product(sorted({steps for steps, _ in present}), OPTIMISER_ORDER):
        if (steps, optimiser) not in present:
            continue
        title = OPTIMISERS[optimiser].__name__
        printed = printed_row("table5", K=str(steps), Optimiser=title)
        cells = []
        for name, column in names.items():
            key = ("shakespeare", steps, name, optimiser)
            cells.append(_cell5(groups.get(key), diverged[key], printed.get(column)))
        lines.append((Cell(str(steps)), Cell(title), *cells))
    columns = ("K", "Optimiser", *names.values())
    remarks = tuple(caption("table5")["remarks"])
    return Table("table5", heading(experiment, results), columns, tuple(lines), 2, remarks, measured=True)


def _cell5(group: Group | None, diverged: int, printed: str | None) -> Cell:
    if group is None:
        return Cell("diverged" if diverged else "-", printed)
    cell = accuracy_cell(summarise([group])[0], printed)
    return replace(cell, ours=f"{cell.ours}, {diverged} diverged") if diverged else cell


@dataclass(frozen=True)
class Figure:
    """How a figure is made from runs, and the names of its axes and columns."""

    about: str
    curves: Callable[[Results], list[Curve]]
    value: str  # on the y axis
    factor: float  # from records to the y axis
    names: tuple[str, str, str, str]  # of row, column, series and value in the CSV file


def drift_curves(results: Results) -> list[Curve]:
    """Figure 1: a panel for each task, a curve for each beta."""

    def beta(group: Group) -> float:
        return float(group.runs[0].config.algorithm["optimiser"]["beta"])

    groups = sorted(group_runs(results.finished), key=beta)
    made = []
    for name, task in tasks().items():
        for group in (group for group in groups if key_of(group.runs[0].config)[0] == name):
            label = f"β = {beta(group):g}" + ("" if beta(group) else " (FedAvg)")
            drift = curve(
                group.runs,
                lambda r: (r.drift or {}).get("cosine"),
                row="", column=task.title, series=label, algorithm=label if beta(group) else "fedavg",
            )  # fmt: skip
            made.append(drift)
    return made


def accuracy_curves(results: Results) -> list[Curve]:
    """Figures 2 and 3: a row for each task, a column for each optimiser; algorithms without one are in all columns."""
    groups = _by_key(results)[0]
    used = [name for name in OPTIMISER_ORDER if any(key[3] == name for key in groups)] or [""]
    made = []
    for name, task in tasks().items():
        for optimiser in used:
            column = OPTIMISERS[optimiser].__name__ if optimiser else ""
            for (task_name, _, algorithm, own), group in groups.items():
                if task_name == name and (own == optimiser or not takes_optimiser(algorithm)):
                    series = ALGORITHMS[algorithm].__name__
                    made.append(curve(group.runs, lambda r: r.accuracy, row=task.title, column=column, series=series))
    return made


_ACCURACY = (accuracy_curves, "test accuracy (%)", 100.0, ("task", "optimiser", "algorithm", "accuracy"))

FIGURES: dict[str, Figure] = {
    "figure1": Figure(
        "Mean pairwise cosine distance of a round's client models, FedGBO with SGDm, for several beta.",
        drift_curves, "cosine distance", 1.0, ("panel", "task", "beta", "cosine_distance"),
    ),
    "figure2": Figure("Accuracy against rounds for all tasks, optimisers and algorithms, K = 10.", *_ACCURACY),
    "figure3": Figure("Accuracy against rounds for all tasks, optimisers and algorithms, K = 50.", *_ACCURACY),
}  # fmt: skip
