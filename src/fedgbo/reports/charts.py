"""Charts of curves with confidence bands, for the page and for papers. altair draws, vl-convert writes the files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, MissingExtraError, optional
from fedgbo.reports.curves import ROUNDS, SCORES, Axis, Curve, Point, interval_fields, points
from fedgbo.reports.load import Group
from fedgbo.reports.sections import Line

# Okabe and Ito's colours for the colour-blind, and dashes so that black-and-white print works too.
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [8, 2, 2, 2, 2, 2], [10, 4], [4, 2, 1, 2], [3, 5]]
KINDS = ("png", "svg", "pdf")
PADDING = {"left": 5, "top": 5, "bottom": 5, "right": 30}  # keeps the legend whole if the font is wider than measured
WIDE, NARROW = (640, 400), (270, 180)  # width and height of a single panel, and of one among many
ROOM = 0.15  # for bands in a panel, as a share of what its lines span


@dataclass(frozen=True)
class Palette:
    """A colour and a dash for each name, the same in every chart; up to 64 names have distinct pairs."""

    names: tuple[str, ...]
    colours: tuple[str, ...] = tuple(COLOURS)

    def colour(self, name: str) -> str:
        return self.colours[self.names.index(name) % len(self.colours)]

    def dash(self, name: str) -> list[int]:
        i = self.names.index(name)
        return DASHES[(i + i // len(self.colours)) % len(DASHES)]

    def channels(self, names: Sequence[str], legend: Any) -> tuple[Any, Any]:
        """Return the altair encodings of colour and dash for these names."""
        alt = altair()
        colours = alt.Scale(domain=list(names), range=[self.colour(name) for name in names])
        dashes = alt.Scale(domain=list(names), range=[self.dash(name) for name in names])
        colour = alt.Color("algorithm:N", scale=colours, legend=legend)
        return colour, alt.StrokeDash("algorithm:N", scale=dashes, legend=legend)


def extra(module: str, need: str) -> Any:
    """Import a dependency of charts and reports."""
    return optional(module, "charts", need)


def altair() -> Any:
    """Import altair."""
    return extra("altair", "charts need altair")


def save_chart(chart: Any, path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the chart in several formats (png, svg, pdf) beside each other; return the files.

    `path` may end in one of these suffixes; any other full stop is part of the name.
    """
    stem = path.with_suffix("") if path.suffix.lower().removeprefix(".") in KINDS else path
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    try:
        for file in files:
            chart.save(file, scale_factor=2 if file.suffix == ".png" else 1)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; choose another place") from error
    except (ImportError, ValueError) as error:
        raise MissingExtraError(f"charts need vl-convert: pip install 'fedgbo[charts]' ({error})") from error
    return files


def titled(chart: Any, title: str, subtitle: str | Sequence[str]) -> Any:
    """Add a title, and the grid and legend that all charts share."""
    chart = chart.properties(title=altair().Title(title, subtitle=subtitle, anchor="start"), padding=PADDING)
    chart = chart.configure_axis(grid=True, gridOpacity=0.4)
    return chart.configure_legend(labelFontSize=12, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)


def bands(seeds: int) -> str:
    """Explain lines and bands.

    >>> bands(1)
    'one seed'
    """
    return f"mean of {seeds} seeds, bands: 95% confidence interval" if seeds > 1 else "one seed"


def on_paper(chart: Any, title: str, seeds: int) -> Any:
    """Give a chart of curves its title and size on paper."""
    return titled(chart.properties(width=WIDE[0], height=WIDE[1]), title, bands(seeds))


def embedded(chart: Any) -> dict[str, Any]:
    """Return a chart's specification without the parts that the page sets."""
    return {key: value for key, value in chart.to_dict().items() if key not in ("config", "$schema")}


def extent(rows: Sequence[Point], y: Axis, room: float = math.inf) -> list[float]:
    """Return the range of the y axis: all lines, and their bands as far as values can lie there.

    Bands get at most the share `room` of the lines' span on either side: with few seeds they are very wide.
    """
    if not rows:
        return [0.0, 1.0]
    means = [row[y.key] for row in rows if y.key in row]
    ends = [row[key] for row in rows for key in (y.key, f"{y.key}_low", f"{y.key}_high") if key in row]
    low, high = min(means), max(means)
    spare = room * ((high - low) or abs(high) or 1.0)
    bottom, top = max(low - spare, min(ends)), min(high + spare, max(ends))
    bottom = max(bottom, 0.0) if low >= 0 else bottom
    top = min(top, 100.0) if y == SCORES[0] else top
    margin = 0.0 if bottom < top else min(spare, 1.0)
    return [bottom - margin, top + margin]


def accuracy_chart(groups: Sequence[Group], title: str) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds."""
    rows = points([Line(group.label, group.runs) for group in groups], [ROUNDS], SCORES[:1])
    names = tuple(group.label for group in groups)
    floor = 10 * (max(row["accuracy"] for row in rows) // 20)  # shows the upper half of the accuracies
    chart = curve_chart(rows, Palette(names), names, ROUNDS, SCORES[0], [floor, 100])
    return on_paper(chart, title, max(len(group.runs) for group in groups))


def panel_chart(curves: Sequence[Curve], title: str, subtitle: Sequence[str], value: str, factor: float = 1.0) -> Any:
    """Return an altair chart of panels in rows and columns, with one legend.

    `value` names the y axis, which shows values times `factor`.
    """
    alt = altair()
    rows, columns = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("row", "column"))
    fullest = max(curves, key=lambda c: sum((o.row, o.column) == (c.row, c.column) for o in curves))
    first = [c.series for c in curves if (c.row, c.column) == (fullest.row, fullest.column)]  # orders the legend
    series = list(dict.fromkeys([*first, *(c.series for c in curves)]))
    width, height = NARROW if len(rows) * len(columns) > 1 else WIDE
    palette, y, lines = Palette(tuple(series)), Axis("mean", value), []
    for row in rows:
        panels = []
        for column in columns:
            here = [c for c in curves if (c.row, c.column) == (row, column)]
            dots = [
                {"algorithm": c.series, "round": at, **interval_fields("mean", factor * mean, factor * half)}
                for c in here
                for at, mean, half in zip(c.rounds.tolist(), c.mean.tolist(), c.half.tolist(), strict=True)
            ]
            panel = curve_chart(dots, palette, series, ROUNDS, y, extent(dots, y, ROOM))
            name = ", ".join(part for part in (row, column) if part)
            panels.append(panel.properties(width=width, height=height, title=name))
        lines.append(alt.hconcat(*panels))
    return titled(alt.vconcat(*lines), title, list(subtitle))


def curve_chart(
    rows: Sequence[Point], palette: Palette, names: Sequence[str], x: Axis, y: Axis, domain: list[float]
) -> Any:
    """Return an altair chart of `y` against `x`, a line and a band for each name; `domain` is the range of `y`."""
    alt = altair()
    whole = {"tickMinStep": 1, "format": "d"} if x.key == ROUNDS.key else {}
    across = alt.X(f"{x.key}:Q", title=x.title, axis=alt.Axis(labelOverlap="greedy", labelSeparation=12, **whole))
    channels = palette.channels(names, alt.Legend(title=None, symbolType="stroke", symbolOpacity=1))
    return _layers(rows, channels, across, y, domain)


def live_chart(
    rows: Sequence[Point], palette: Palette, names: Sequence[str], costs: Sequence[Axis], y: Axis
) -> dict[str, Any]:
    """Return the specification of the page's chart of these rows, without them, against the first of the costs.

    The page sets the signal `shown` to the algorithms to show, and may replace the field and the title of x.
    """
    alt = altair()
    told = {y.key: y.title, f"{y.key}_low": "95% interval from", f"{y.key}_high": "to", "seeds": "seeds"}
    told |= {cost.key: cost.title for cost in costs if all(cost.key in row for row in rows)}
    tooltip = ["algorithm:N", *(alt.Tooltip(f"{key}:Q", title=title, format=".4~g") for key, title in told.items())]
    near = alt.selection_point(name="near", nearest=True, on="pointerover", clear="pointerout", empty=False)
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.shiftKey || event.ctrlKey]")
    across = alt.X(f"{costs[0].key}:Q", title=costs[0].title)
    colour, dash = palette.channels(names, None)
    layers = _layers([], (colour, dash), across, y, extent(rows, y))
    opacity = alt.condition(near, alt.value(1), alt.value(0))
    dots = alt.Chart().mark_point(filled=True, size=60, clip=True).add_params(near)
    dots = dots.encode(x=across, y=f"{y.key}:Q", color=colour, opacity=opacity, tooltip=tooltip)
    layers.layer[1] = layers.layer[1].add_params(zoom)
    chart = (layers + dots).add_params(alt.param(name="shown", value=list(names)))
    chart = chart.transform_filter("indexof(shown, datum.algorithm) >= 0").properties(width="container", height=380)
    return {key: value for key, value in embedded(chart).items() if key not in ("data", "datasets")}


def _layers(rows: Sequence[Point], channels: tuple[Any, Any], x: Any, y: Axis, domain: list[float]) -> Any:
    alt = altair()
    colour, dash = channels
    scale = alt.Scale(nice=True, domain=domain)
    base = alt.Chart(alt.Data(values=list(rows))).encode(x=x, color=colour)
    low = alt.Y(f"{y.key}_low:Q", title=y.title, scale=scale)
    band = base.mark_area(opacity=0.12, clip=True).encode(y=low, y2=f"{y.key}_high:Q")
    line = base.mark_line(strokeWidth=2, clip=True).encode(y=alt.Y(f"{y.key}:Q", scale=scale), strokeDash=dash)
    return alt.layer(band, line)
