"""Curves over rounds: the mean over seeds of whatever a record holds, with its interval, and as CSV."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np

from fedgbo.core.errors import RunFolderError
from fedgbo.reports.load import Floats, RunData, over_seeds
from fedgbo.reports.paired import confidence
from fedgbo.runs.record import Record


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a picture, in the panel (row, column)."""

    row: str
    column: str
    series: str
    rounds: Floats  # (R,)
    mean: Floats  # (R,)
    half: Floats  # (R,), of the 95% interval; NaN with a single seed
    seeds: int


def curve(
    runs: Sequence[RunData], value: Callable[[Record], float | None], *, row: str, column: str, series: str
) -> Curve:
    """Average runs that differ in their seed, at the rounds where all of them have a value."""
    rounds, values = over_seeds(runs, value)
    if not rounds.size:
        raise RunFolderError(f"{runs[0].path} has nothing to draw: its records lack what this picture shows")
    return Curve(row, column, series, rounds, values.mean(axis=0), confidence(values), len(runs))


def curves_csv(curves: Sequence[Curve], heading: str, names: tuple[str, str, str, str]) -> str:
    """Write the numbers behind a picture; `names` are those of row, column, series and value."""
    text = StringIO()
    text.write(f"# {' '.join(heading.split())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names[:3], "seeds", "round", names[3], "low", "high"])
    for line in curves:
        for at, mean, half in zip(line.rounds, line.mean, line.half, strict=True):
            band = ["", ""] if np.isnan(half) else [repr(float(mean - half)), repr(float(mean + half))]
            writer.writerow([line.row, line.column, line.series, line.seeds, int(at), repr(float(mean)), *band])
    return text.getvalue()
