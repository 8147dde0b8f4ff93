"""A picture of many panels: rows, columns, and in each panel curves with confidence bands; one legend for all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgbo.reports.chart import altair, titled
from fedgbo.reports.curves import Curve
from fedgbo.reports.drawing import Palette, curve_chart
from fedgbo.reports.measures import ROUNDS, Axis, Point

ROOM = 0.15  # of what the lines span, on either side, for bands that are wider
WIDE, NARROW = (640, 400), (270, 180)  # a picture of one panel, and of many


def panel_chart(curves: Sequence[Curve], title: str, subtitle: Sequence[str], value: str, factor: float = 1.0) -> Any:
    """Return an altair chart; `value` names the y axis, which shows values times `factor`."""
    alt = altair()
    rows, columns = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("row", "column"))
    fullest = max(curves, key=lambda c: sum((o.row, o.column) == (c.row, c.column) for o in curves))
    first = [c.series for c in curves if (c.row, c.column) == (fullest.row, fullest.column)]  # orders the legend
    series = list(dict.fromkeys([*first, *(c.series for c in curves)]))
    size = NARROW if len(rows) * len(columns) > 1 else WIDE
    palette, lines = Palette(tuple(series)), []
    for row in rows:
        panels = []
        for column in columns:
            here = [c for c in curves if (c.row, c.column) == (row, column)]
            name = ", ".join(part for part in (row, column) if part)
            panel = curve_chart(
                _points(here, factor), palette, series, ROUNDS, Axis("mean", value), domain=_visible(here, factor)
            )
            panels.append(panel.properties(width=size[0], height=size[1], title=name))
        lines.append(alt.hconcat(*panels))
    return titled(alt.vconcat(*lines), title, list(subtitle))


def _points(curves: Sequence[Curve], factor: float) -> list[Point]:
    points = []
    for c in curves:
        for at, mean, half in zip(c.rounds.tolist(), c.mean.tolist(), c.half.tolist(), strict=True):
            point = {"algorithm": c.series, "round": at, "mean": factor * mean}
            if half == half:  # a single seed has no interval
                point |= {"mean_low": factor * (mean - half), "mean_high": factor * (mean + half)}
            points.append(point)
    return points


def _visible(curves: Sequence[Curve], factor: float) -> list[float]:
    """Return what the y axis spans: all lines, and of their bands a little; with few seeds these fill any picture."""
    if not curves:
        return [0.0, 1.0]
    low, high = min(c.mean.min() for c in curves), max(c.mean.max() for c in curves)
    room = ROOM * ((high - low) or abs(high) or 1.0)
    bottom = max(low - room, min((c.mean - np.nan_to_num(c.half)).min() for c in curves))
    top = min(high + room, max((c.mean + np.nan_to_num(c.half)).max() for c in curves))
    if low >= 0:
        bottom = max(bottom, 0.0)
    if top == bottom:
        top += room
    return [float(factor * bottom), float(factor * top)]
