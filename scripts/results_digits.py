"""What docs/results.md says of the digits, from the tables of `fedgbo compare`, of `fedgbo tune` and of a search."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgbo.experiments.presets import preset
from fedgbo.reports.comparison import REMARK, Effort, Summary, conclusion, cost_columns, paired, percent, row_lines
from fedgbo.reports.table import Cell, Table, markdown

HIDDEN = ("FLOPs to match", "Difference to FedAvg", "p")  # the tables were made before there were differences
SCORES = {"curve": "mean of all rounds", "second half": "mean of the second half", "last": "after round 100"}
WHERE = {"held-out": "held-out data", "test": "test set"}


def digits_parts(folder: Path) -> dict[str, str]:
    """Return the parts by their names."""
    compared, ten = (_rows(folder / f"digits-{name}.json") for name in ("compare", "ten-seeds"))
    return {
        "digits-compare": "\n\n".join([_cost_table(compared), *conclusion(compared)]),
        "digits-ten-seeds": f"{_accuracies(ten)} {' '.join(conclusion(ten))}",
        "digits-search": _winners(folder / "digits-search.csv"),
        "digits-trials": _trials(folder / "digits-tune-trials.csv"),
        "digits-tune": _tuned(folder / "digits-tune.csv"),
    }


def _rows(file: Path) -> list[Summary]:
    """Read what `fedgbo compare` wrote."""
    rows = []
    for row in json.loads(file.read_text(encoding="utf-8")):
        match = Effort(**row["match"]) if row["match"] else None
        rows.append(Summary(row["label"], row["seeds"], row["accuracy"], row["interval"], Effort(**row["best"]), match))
    return rows


def _cost_table(rows: Sequence[Summary]) -> str:
    columns = cost_columns(True)
    kept = [i for i, column in enumerate(columns) if column not in HIDDEN]
    baseline = next(row for row in rows if row.label == "fedavg")
    lines = tuple(tuple(cells[i] for i in kept) for cells in row_lines(rows, baseline, True))
    title = f"Best accuracy, and what it took, {rows[0].seeds} seeds"
    return markdown(
        Table("compare", title, tuple(columns[i] for i in kept), lines, remarks=(REMARK,), measured=True)
    ).strip()


def _accuracies(rows: Sequence[Summary]) -> str:
    said = [f"{row.label} comes to {percent(row.accuracy, row.interval)} % at round {row.best.round}" for row in rows]
    return f"{' and '.join(said)}."


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
        f"It tried {len(rows)} settings, stopped {early} of them early, took {rounds:,} rounds, and chose "
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
