"""What docs/results.md says of the digits, from the runs of `make demo`, of `fedgbo tune` and of a search."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from results_tasks import save_with_digest

from fedgbo.experiments.presets import preset
from fedgbo.reports.comparison import Summary, conclusion, number_word, paired, summarise
from fedgbo.reports.cost_table import cost_columns, cost_lines, cost_remarks
from fedgbo.reports.finding import accuracy_chart
from fedgbo.reports.load import Group, read_metrics
from fedgbo.reports.sections import sections_of
from fedgbo.reports.sensitivity import Scale, Tried, sensitivity_chart
from fedgbo.reports.table import Cell, Table, markdown

SEARCH_SEEDS = 6  # of `fedgbo tune`, as the page has the command
HIDDEN = ("FLOPs to match", "p")
SCORES = {"curve": "mean of all rounds", "second half": "mean of the second half", "last": "after round 100"}
WHERE = {"held-out": "held-out data", "test": "test set"}


def digits_parts(folder: Path) -> dict[str, str]:
    """Return the parts by their names."""
    rows = summarise(_groups(folder / "digits.csv"))
    return {
        "digits-compare": "\n\n".join([_cost_table(rows), *conclusion(rows)]),
        "digits-search": _winners(folder / "digits-search.csv"),
        "digits-trials": _trials(folder / "digits-tune-trials.csv"),
        "digits-tune": _tuned(folder / "digits-tune.csv"),
    }


def draw_digits(folder: Path, images: Path) -> None:
    """Draw the comparison of all algorithms, and the search."""
    compared, trials = folder / "digits.csv", folder / "digits-tune-trials.csv"
    chart = accuracy_chart(_groups(compared), "Digits, 50 clients, strong label skew")
    save_with_digest(chart, compared, images / "digits")
    names = ("lr", "beta")
    tried = [
        Tried(int(row["trial"]), {name: float(row[name]) for name in names}, row["state"], float(row["score"]), {})
        for row in _read(trials)
    ]
    scales = [Scale("lr", None, decay=False, logarithmic=True), Scale("beta", None, decay=True, logarithmic=True)]
    best = max((one for one in tried if one.state == "finished"), key=lambda one: one.score or 0.0)
    found = f"lr = {best.settings['lr']:.2g} and beta = {best.settings['beta']:.2g}"
    title = f"FedGBO-SGDm on digits: of these settings, {found} are best"
    chart = sensitivity_chart(tried, scales, title, "accuracy on held-out data", SEARCH_SEEDS)
    save_with_digest(chart, trials, images / "digits-tune")


def _groups(file: Path) -> list[Group]:
    return [line.group() for line in sections_of(read_metrics(file))[0].lines]


def _cost_table(rows: Sequence[Summary]) -> str:
    columns = cost_columns(True)
    kept = [i for i, column in enumerate(columns) if column not in HIDDEN]
    lines = tuple(tuple(cells[i] for i in kept) for cells in cost_lines(rows, True))
    title = f"Best accuracy and its cost, {number_word(rows[0].seeds)}"
    heads, remarks = tuple(columns[i] for i in kept), cost_remarks(True, rows[0].seeds)
    return markdown(Table("compare", title, heads, lines, remarks=remarks, measured=True)).strip()


def _winners(file: Path) -> str:
    """Say the best scores of the search's last stage, on the most seeds."""
    rows = _read(file)
    last = max((row["Seeds"] for row in rows), key=len)
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["Seeds"] == last:
            scores.setdefault(f"{row['Algorithm']}-{row['Optimiser']}", []).append(float(row["Score"]))
    return f"FedGBO {max(scores['fedgbo-sgdm']):.1%}, FedAvg {max(scores['fedavg-sgd']):.1%}"


def _trials(file: Path) -> str:
    rows, shipped = _read(file), preset("digits", "digits", "fedgbo", "sgdm", 10)
    early = sum(row["state"] == "stopped early" for row in rows)
    best = max((row for row in rows if row["state"] == "finished"), key=lambda row: float(row["score"]))
    known = ", ".join(f"{key} = {value:g}" for key, value in shipped.settings.items()) if shipped else "none"
    rounds = sum(int(row["rounds"]) for row in rows)
    return (
        f"The search tried {len(rows)} settings, stopped {early} of them early, used {rounds:,} rounds, and chose "
        f"lr = {best['lr']}, beta = {best['beta']} (shipped: {known})."
    )


def _tuned(file: Path) -> str:
    rows = _read(file)
    lines = []
    for on, place in WHERE.items():
        for score, name in SCORES.items():
            shipped, tuned = (
                np.array([float(row[score]) for row in rows if (row["setting"], row["on"]) == (setting, on)])
                for setting in ("shipped", "tuned")
            )
            both = paired(tuned, shipped)
            gain = f"{100 * both.difference:+.2f} ± {100 * (both.interval or 0):.2f}"
            texts = place, name, f"{100 * shipped.mean():.2f}", f"{100 * tuned.mean():.2f}", gain
            lines.append(tuple(map(Cell, texts)))
    columns = ("Measured on", "Accuracy", "Shipped (%)", "Tuned (%)", "Difference, paired over seeds")
    title = f"Shipped and tuned settings, {both.seeds} seeds"
    return markdown(Table("tune", title, columns, tuple(lines), labels=2, measured=True)).strip()


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))
