"""The history of a run as rows, as a pandas DataFrame and as an altair chart."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fedgbo.core import ConfigError, optional, unknown
from fedgbo.runs.record import Record

SIZE = (480, 300)  # width and height of a chart


def rows_of(history: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a flat row for each evaluation; each measure of drift has a column, such as drift.cosine."""
    rows = []
    for record in history:
        row = asdict(record)
        drift = row.pop("drift") or {}
        rows.append(row | {f"drift.{name}": value for name, value in drift.items()})
    return rows


def frame_of(history: Iterable[Record]) -> Any:
    """Return a DataFrame with a row for each evaluation."""
    return table_frame(rows_of(history))


def table_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, with a column for every name that occurs."""
    pandas = optional("pandas", "frames", "frame() needs pandas")
    return pandas.DataFrame(rows)


def chart_of(history: Sequence[Record], x: str, y: str | None, title: str) -> Any:
    """Return a chart of one number of the records against another."""
    alt = optional("altair", "charts", "plot() needs altair")
    rows = rows_of(history)
    if not rows:
        raise ConfigError("there is no evaluation to plot yet")
    numbers = {name for row in rows for name, value in row.items() if isinstance(value, int | float)}
    y = y or next((name for name in ("accuracy", "loss", "validation_accuracy") if name in numbers), "train_loss")
    for name in (x, y):
        if name not in numbers:
            raise ConfigError(unknown("number of a record", name, numbers))
    points = [{"x": row[x], "y": row[y]} for row in rows if row.get(x) is not None and row.get(y) is not None]
    shown = {"format": "%"} if y.endswith("accuracy") else {}
    across = alt.X("x:Q", title=x, axis=alt.Axis(tickMinStep=1) if x == "round" else alt.Axis())
    up = alt.Y("y:Q", title=y, axis=alt.Axis(**shown), scale=alt.Scale(zero=False))
    line = alt.Chart(alt.Data(values=points)).mark_line(point=True).encode(x=across, y=up)
    return line.properties(title=title, width=SIZE[0], height=SIZE[1])
