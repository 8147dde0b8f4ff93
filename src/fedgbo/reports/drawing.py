"""Curves with confidence bands: one drawing for the page, where it can be hovered and zoomed, and for paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgbo.reports.chart import COLOURS, DASHES, altair, bands, titled
from fedgbo.reports.load import Group
from fedgbo.reports.measures import ROUNDS, SCORES, Axis, Point, points
from fedgbo.reports.sections import Line


@dataclass(frozen=True)
class Palette:
    """A colour and a dash for each name, the same ones in every chart; no two names share both until 65."""

    names: tuple[str, ...]
    colours: tuple[str, ...] = tuple(COLOURS)

    def colour(self, name: str) -> str:
        """Return a name's colour."""
        return self.colours[self.names.index(name) % len(self.colours)]

    def dash(self, name: str) -> list[int]:
        """Return a name's dashes."""
        i = self.names.index(name)
        return DASHES[(i + i // len(self.colours)) % len(DASHES)]


def accuracy_chart(groups: Sequence[Group], title: str) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds: the picture of a comparison."""
    y = SCORES[0]
    rows = points([Line(group.label, group.runs) for group in groups], [ROUNDS], [y])
    names = tuple(group.label for group in groups)
    floor = 10 * (max(row["accuracy"] for row in rows) // 20)  # the upper half of what was reached is what is compared
    chart = curve_chart(rows, Palette(names), names, ROUNDS, y, domain=[floor, 100])
    return on_paper(chart, title, max(len(group.runs) for group in groups))


def on_paper(chart: Any, title: str, seeds: int) -> Any:
    """Give curves their title and size on paper."""
    return titled(chart.properties(width=640, height=400), title, bands(seeds))


def curve_chart(rows: Sequence[Point], palette: Palette, names: Sequence[str], x: Axis, y: Axis, **scale: Any) -> Any:
    """Return an altair chart of `y` against `x`, a line and a band for each name; `scale` is for the y axis."""
    alt = altair()
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1)
    whole = {"tickMinStep": 1, "format": "d"} if x.key == ROUNDS.key else {}
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=12, **whole)
    across = alt.X(f"{x.key}:Q", title=x.title, axis=axis)
    return _layers(rows, palette, names, across, y, legend, scale)


def live_chart(
    rows: Sequence[Point], palette: Palette, names: Sequence[str], costs: Sequence[Axis], y: Axis
) -> dict[str, Any]:
    """Return the specification of the page's chart of these rows, without them, against the first of the costs.

    The page sets the signal `shown` to the algorithms to be seen, and may swap the field and the title of x.
    """
    alt = altair()
    tooltip = [
        alt.Tooltip("algorithm:N"),
        alt.Tooltip(f"{y.key}:Q", title=y.title, format=".4~g"),
        alt.Tooltip(f"{y.key}_low:Q", title="95% interval from", format=".4~g"),
        alt.Tooltip(f"{y.key}_high:Q", title="to", format=".4~g"),
        alt.Tooltip("seeds:Q"),
        *(alt.Tooltip(f"{cost.key}:Q", title=cost.title, format=".4~g") for cost in costs),
    ]
    near = alt.selection_point(name="near", nearest=True, on="pointerover", clear="pointerout", empty=False)
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.shiftKey || event.ctrlKey]")
    across = alt.X(f"{costs[0].key}:Q", title=costs[0].title)
    layers = _layers([], palette, names, across, y, None, {"domain": extent(rows, y)})
    dots = (
        alt.Chart()
        .mark_point(filled=True, size=60, clip=True)
        .encode(
            x=across,
            y=alt.Y(f"{y.key}:Q"),
            color=layers.layer[0].encoding.color,
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=tooltip,
        )
        .add_params(near)
    )
    layers.layer[1] = layers.layer[1].add_params(zoom)
    chart = (layers + dots).add_params(alt.param(name="shown", value=list(names)))
    chart = chart.transform_filter("indexof(shown, datum.algorithm) >= 0").properties(width="container", height=380)
    spec: dict[str, Any] = chart.to_dict(validate=True)
    for part in ("data", "datasets", "config", "$schema"):
        spec.pop(part, None)
    return spec


def extent(rows: Sequence[Point], y: Axis) -> list[float]:
    """Return the least and the largest of what is drawn; a band's part that no value can have is cut off."""
    values = [row[key] for row in rows for key in (y.key, f"{y.key}_low", f"{y.key}_high") if key in row]
    low, high = min(values), max(values)
    if min(row[y.key] for row in rows if y.key in row) >= 0:
        low = max(low, 0.0)
    if y.key == "accuracy" and y.scale == 0.01:
        high = min(high, 100.0)
    return [low, high] if low < high else [low - 1, high + 1]


def _layers(
    rows: Sequence[Point],
    palette: Palette,
    names: Sequence[str],
    across: Any,
    y: Axis,
    legend: Any,
    scale: dict[str, Any],
) -> Any:
    alt = altair()
    height = alt.Scale(nice=True, **scale)
    colours = alt.Scale(domain=list(names), range=[palette.colour(name) for name in names])
    dashes = alt.Scale(domain=list(names), range=[palette.dash(name) for name in names])
    colour = alt.Color("algorithm:N", scale=colours, legend=legend)
    base = alt.Chart(alt.Data(values=list(rows))).encode(x=across, color=colour)
    band = base.mark_area(opacity=0.12, clip=True).encode(
        y=alt.Y(f"{y.key}_low:Q", title=y.title, scale=height), y2=f"{y.key}_high:Q"
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        y=alt.Y(f"{y.key}:Q", scale=height),
        strokeDash=alt.StrokeDash("algorithm:N", scale=dashes, legend=legend),
    )
    return alt.layer(band, line)
