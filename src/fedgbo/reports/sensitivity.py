"""The chart of a search: how the score depends on the learning rate, on beta, and on other searched settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgbo.reports.charts import altair, titled
from fedgbo.reports.comparison import number_word
from fedgbo.reports.palette import OTHERS, STRONG

SIDE = 250  # pixels of a panel; all have the same, so that equal axes have equal ticks
WIDE = 1e3  # the ratio of the ends of a logarithmic axis from which it has ticks at powers of ten only


@dataclass(frozen=True)
class Tried:
    """A setting that was tried."""

    index: int
    settings: Mapping[str, float]
    state: str  # finished, stopped early, or diverged
    score: float | None  # the last one if it was stopped early; None if nothing was measured
    cost: Mapping[str, float]


@dataclass(frozen=True)
class Scale:
    """How an axis is drawn."""

    name: str
    values: Sequence[float] | None  # of a grid; None where values are continuous
    decay: bool  # drawn by 1 - value, so that 0.9, 0.99 and 0.999 are equally far apart
    logarithmic: bool


def sensitivity_chart(tried: Sequence[Tried], scales: Sequence[Scale], title: str, measured: str, seeds: int) -> Any:
    """Return an altair chart: the score over the first and the last axis, then over each axis by itself.

    `measured` names the score, a mean over so many seeds; accuracies are drawn in per cent. A setting that was stopped
    early is hollow and has the score at that time. Settings that diverged or have no score are left out.
    """
    alt = altair()
    shown = [(one, one.score) for one in tried if one.score is not None and one.state != "diverged"]
    percent = all(0 <= score <= 1 for _, score in shown)
    whole = [(one, score) for one, score in shown if one.state == "finished"]
    best = max(whole or shown, key=lambda pair: pair[1], default=(None, 0.0))[0]
    rows = []
    for one, score in shown:
        row: dict[str, Any] = {s.name: (1 - v) if s.decay else v for s in scales for v in [one.settings[s.name]]}
        row |= {"score": 100 * score if percent else score, "state": one.state, "best": one is best}
        rows.append(row | {"text": f"{row['score']:.1f}" if one.state == "finished" else "stopped"})
    label = f"{measured} (%)" if percent else measured
    panels = [_panel(alt, rows, scale, label) for scale in scales]
    if len(scales) > 1:
        panels.insert(0, _map(alt, rows, scales[0], scales[-1], label))
    ended = f"{len(whole)} of them tried to the end, on {number_word(seeds)} (filled)"
    subtitle = f"{len(tried)} settings, {ended}; the best is ringed"
    return titled(alt.hconcat(*panels), title, subtitle)


def _panel(alt: Any, rows: list[dict[str, Any]], scale: Scale, label: str) -> Any:
    """The score against one axis."""
    height = alt.Y("score:Q", title=label, scale=alt.Scale(zero=False))
    base = alt.Chart(alt.Data(values=rows)).encode(x=_axis(alt, alt.X, scale, rows), y=height)
    filled = alt.condition(alt.datum.state == "finished", alt.value(1), alt.value(0))
    dots = base.mark_point(size=45, color=OTHERS[0]).encode(fillOpacity=filled, fill=alt.value(OTHERS[0]))
    return (dots + _ring(base)).properties(width=SIDE, height=SIDE)


def _map(alt: Any, rows: list[dict[str, Any]], across: Scale, up: Scale, label: str) -> Any:
    """The score over two axes: cells of a grid with their best score, or a dot for each setting."""
    scores = [row["score"] for row in rows] or [0.0]
    seen = alt.SchemeParams(name="viridis", extent=[0.3, 0.9])  # on light and on dark paper
    scale = alt.Scale(scheme=seen, domain=[min(scores), max(scores)])
    colour = alt.Color(
        "score:Q", title=label, scale=scale, legend=alt.Legend(orient="top", titleLimit=SIDE, symbolSize=90)
    )
    base = alt.Chart(alt.Data(values=rows)).encode(x=_axis(alt, alt.X, across, rows), y=_axis(alt, alt.Y, up, rows))
    if across.values is None or up.values is None:
        coloured, ends = base.encode(color=colour), "datum.state === 'finished'"
        stopped = coloured.transform_filter(f"!({ends})").mark_point(size=60, opacity=1)
        ended = coloured.transform_filter(ends).mark_circle(size=90, opacity=1)
        return (stopped + ended + _ring(base)).properties(width=SIDE, height=SIDE)
    cells = {(row[across.name], row[up.name]): row for row in sorted(rows, key=lambda row: (row["best"], row["score"]))}
    x, y = _axis(alt, alt.X, across, rows, cells=True), _axis(alt, alt.Y, up, rows, cells=True)
    base = alt.Chart(alt.Data(values=list(cells.values()))).encode(x=x, y=y)
    middle = (min(scores) + max(scores)) / 2
    dark = alt.condition(alt.datum.score > middle, alt.value("black"), alt.value("white"))
    text = base.mark_text(fontSize=11).encode(text="text:N", color=dark)
    ring = base.transform_filter("datum.best").mark_rect(filled=False, stroke=STRONG, strokeWidth=3)
    return (base.mark_rect().encode(color=colour) + text + ring).properties(width=SIDE, height=SIDE)


def _ring(base: Any) -> Any:
    return base.transform_filter("datum.best").mark_point(size=220, color=STRONG, strokeWidth=2.5, filled=False)


def _axis(alt: Any, channel: Any, scale: Scale, rows: list[dict[str, Any]], cells: bool = False) -> Any:
    """A continuous axis, or one of cells, from the smallest value to the largest, up or to the right."""
    value = "1 - datum.value" if scale.decay else "datum.value"
    text = f"format({value}, {value} < 0.001 ? '.6~e' : '.6~g')"
    labels = {"labelExpr": text, "labelOverlap": "greedy", "labelSeparation": 6}
    if cells:
        ascending = sorted((1 - v if scale.decay else v for v in scale.values or ()), reverse=scale.decay)
        order = ascending if channel is alt.X else ascending[::-1]
        return channel(f"{scale.name}:O", title=scale.name, sort=order, axis=alt.Axis(**labels, labelAngle=0))
    kind = "log" if scale.logarithmic else "linear"
    drawn = alt.Scale(type=kind, zero=False, reverse=scale.decay, nice=False, padding=10)
    ticks = {"values": _ticks([row[scale.name] for row in rows])} if scale.logarithmic else {"tickCount": 6}
    return channel(f"{scale.name}:Q", title=scale.name, scale=drawn, axis=alt.Axis(**labels, **ticks))


def _ticks(values: list[float]) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten and, unless it spans many, three times these."""
    factors = (1, 3) if values and max(values) < WIDE * min(values) else (1,)
    return [factor * 10.0**power for power in range(-8, 5) for factor in factors]
