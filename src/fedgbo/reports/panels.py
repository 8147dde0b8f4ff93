"""A picture of many panels: rows, columns, and in each panel curves with confidence bands; one legend for all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgbo.reports.chart import COLOURS, DASHES, altair, cycled
from fedgbo.reports.curves import Curve

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
    scales = {
        "colour": alt.Scale(domain=series, range=cycled(COLOURS, len(series))),
        "dash": alt.Scale(domain=series, range=cycled(DASHES, len(series))),
    }
    lines = []
    for row in rows:
        panels = []
        for column in columns:
            here = [c for c in curves if (c.row, c.column) == (row, column)]
            name = ", ".join(part for part in (row, column) if part)
            panels.append(
                _panel(alt, here, scales, value, factor).properties(width=size[0], height=size[1], title=name)
            )
        lines.append(alt.hconcat(*panels))
    return (
        alt.vconcat(*lines)
        .properties(title=alt.Title(title, subtitle=list(subtitle), anchor="start"))
        .configure_axis(grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)
    )


def _panel(alt: Any, curves: Sequence[Curve], scales: dict[str, Any], value: str, factor: float) -> Any:
    points = [
        {"series": c.series, "round": r, "mean": factor * m, "low": factor * (m - h), "high": factor * (m + h)}
        for c in curves
        for r, m, h in zip(c.rounds.tolist(), c.mean.tolist(), np.nan_to_num(c.half).tolist(), strict=True)
    ]
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1)
    colour = alt.Color("series:N", scale=scales["colour"], legend=legend)
    height = alt.Scale(domain=_visible(curves, factor), nice=True)
    steps = alt.Axis(tickMinStep=1, format="d")
    base = alt.Chart(alt.Data(values=points)).encode(x=alt.X("round:Q", title="communication rounds", axis=steps))
    band = base.mark_area(opacity=0.12, clip=True).encode(
        y=alt.Y("low:Q", title=value, scale=height), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=1.8, clip=True).encode(
        y=alt.Y("mean:Q", scale=height),
        color=colour,
        strokeDash=alt.StrokeDash("series:N", scale=scales["dash"], legend=legend),
    )
    return band + line


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
