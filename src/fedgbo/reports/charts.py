"""Charts of curves with confidence bands, for the page and for papers. altair draws, vl-convert writes the files.

The last functions find places for text that do not lie on lines. Heights are values of the y axis; a line is two
arrays, its places on the x axis and its values there.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core import RunFolderError, optional
from fedgbo.core.files import write_atomic
from fedgbo.reports.comparison import FEWEST_SEEDS, number_word
from fedgbo.reports.curves import ROUNDS, Axis, Curve, interval_fields
from fedgbo.reports.load import Floats
from fedgbo.reports.palette import DARK, INK, PAPER, QUIET, RULE, Palette, Point

KINDS = ("png", "svg", "pdf")
PADDING = {"left": 8, "top": 8, "bottom": 8, "right": 16}
WIDE, NARROW = (640, 400), (270, 180)  # width and height of a single panel, and of one among many
HEADLINE, TEXT = 17, 14  # pixels of text; a picture of 800 pixels is still readable on a phone
WIDER = 2  # pixels by which a letter of a line's name may be wider in a browser than in the layout
LETTERS = {"text": 0.62 * HEADLINE, "subtitle": 0.53 * TEXT}  # pixels of an average letter in DejaVu Sans, a wide font
Span = tuple[float, float]  # from, to
ROOM = 0.15  # for bands in a panel, as a share of what its lines span


def extra(module: str, need: str) -> Any:
    """Import a dependency of charts and reports."""
    return optional(module, "charts", need)


def altair() -> Any:
    """Import altair."""
    return extra("altair", "charts need altair")


def save_chart(chart: Any, path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the chart in several formats (png, svg, pdf) beside each other; return the files.

    `path` may end in one of these suffixes; any other full stop is part of the name. An SVG file follows the reader's
    light or dark mode.
    """
    stem = path.with_suffix("") if path.suffix.lower().removeprefix(".") in KINDS else path
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    convert = extra("vl_convert", "charts need vl-convert")
    svg = with_room(convert.vegalite_to_svg(chart.to_json()), chart.title)  # the other formats are made from it
    made: Mapping[str, Callable[[], bytes]] = {
        "svg": lambda: with_dark_mode(svg).encode(),
        "png": lambda: convert.svg_to_png(svg, scale=2),
        "pdf": lambda: convert.svg_to_pdf(svg),
    }
    for file, kind in zip(files, kinds, strict=True):
        content = made[kind]()
        try:
            write_atomic(file, content, durable=False)
        except OSError as error:
            raise RunFolderError(f"cannot write {file}: {error.strerror}; choose another place") from error
    return files


def with_room(svg: str, title: Any) -> str:
    """Widen a picture if its title would not fit in a browser whose font is wider than that of the layout."""
    lines = [
        factor * len(line)
        for key, factor in LETTERS.items()
        if isinstance(text := getattr(title, key, None), str | list)
        for line in ([text] if isinstance(text, str) else text)
    ]
    width = svg.partition('width="')[2].partition('"')[0]
    need = 2 * PADDING["left"] + math.ceil(max(lines, default=0))
    if need <= float(width):
        return svg
    svg = svg.replace(f'width="{width}"', f'width="{need}"', 2)  # of the picture and of its background
    return svg.replace(f'viewBox="0 0 {width} ', f'viewBox="0 0 {need} ', 1)


def with_dark_mode(svg: str) -> str:
    """Add a style sheet that replaces the colours of paper, text and rules where the reader prefers dark pages."""
    rules = "".join(f'[{part}="{a}"]{{{part}:{b}}}' for a, b in DARK.items() for part in ("fill", "stroke"))
    head, end, rest = svg.partition(">")
    return f"{head}{end}<style>@media (prefers-color-scheme:dark){{{rules}}}</style>{rest}"


def titled(chart: Any, title: str, subtitle: str | Sequence[str], names: Sequence[str] = ()) -> Any:
    """Add a title, and the fonts, grid and legend that all charts share; `names` on the right get room for any font."""
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": TEXT, "titleFontSize": TEXT, "titleFontWeight": 400}
    told = altair().Title(
        title, subtitle=subtitle, anchor="start", offset=14, fontSize=HEADLINE, subtitleFontSize=TEXT,
        subtitlePadding=5, color=INK, subtitleColor=QUIET,
    )  # fmt: skip
    padding = PADDING | {"right": PADDING["right"] + WIDER * max(map(len, names), default=0)}
    chart = chart.properties(title=told, padding=padding, background=PAPER).configure(font="sans-serif")
    chart = chart.configure_axis(
        **text, labelSeparation=4, titlePadding=8, gridColor=RULE, gridOpacity=0.6, domainColor=QUIET, tickColor=QUIET
    )
    chart = chart.configure_view(stroke=None).configure_title(color=INK)
    return chart.configure_legend(**text, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)


def described(seeds: Mapping[str, int], two: Sequence[str]) -> str:
    """Explain lines and bands; `seeds` has the number of each label, `two` are the labels with bands.

    >>> described({"FedAvg": 1}, []), described({"FedAvg": 3, "MFL": 2}, ["FedAvg"])
    ('One seed.', 'Means over two to three seeds; bands: 95% confidence intervals of FedAvg.')
    """
    fewest, most = min(seeds.values()), max(seeds.values())
    said = "One seed" if most == 1 else f"Mean over {number_word(most)}"
    if fewest < most:
        said = f"Means over {number_word(fewest).split()[0]} to {number_word(most)}"
    with_bands = [label for label in two if seeds[label] >= FEWEST_SEEDS]
    return f"{said}; bands: 95% confidence intervals of {listed(with_bands)}." if with_bands else f"{said}."


def listed(names: Sequence[str]) -> str:
    """Write a list.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), *names[-1:]])


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
    top = min(top, 100.0) if y.percent else top
    margin = 0.0 if bottom < top else min(spare, 1.0)
    return [bottom - margin, top + margin]


def panel_chart(curves: Sequence[Curve], title: str, subtitle: Sequence[str], value: str, factor: float = 1.0) -> Any:
    """Return an altair chart of panels in rows and columns, with one legend.

    `value` names the y axis, which shows values times `factor`.
    """
    alt = altair()
    rows, columns = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("row", "column"))
    fullest = max(curves, key=lambda c: sum((o.row, o.column) == (c.row, c.column) for o in curves))
    first = [c for c in curves if (c.row, c.column) == (fullest.row, fullest.column)]  # orders the legend
    palette = Palette({c.series: c.algorithm for c in [*first, *curves]})
    width, height = NARROW if len(rows) * len(columns) > 1 else WIDE
    y, most = Axis("mean", value), 100.0 if factor == 100 else math.inf
    legend, lines = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1), []
    for row in rows:
        panels = []
        for column in columns:
            here = [c for c in curves if (c.row, c.column) == (row, column)]
            dots = [
                {"algorithm": c.series, "round": at, **interval_fields("mean", factor * mean, factor * half, most)}
                for c in here
                for at, mean, half in zip(c.rounds.tolist(), c.mean.tolist(), c.half.tolist(), strict=True)
            ]
            scale = alt.Scale(nice=True, domain=extent(dots, y, ROOM))
            across = alt.X("round:Q", title=ROUNDS.title, axis=round_axis())
            panel = line_layers(dots, palette, across, y, scale, legend)
            name = ", ".join(part for part in (row, column) if part)
            panels.append(panel.properties(width=width, height=height, title=name))
        lines.append(alt.hconcat(*panels))
    seeds = {c.series: max(o.seeds for o in curves if o.series == c.series) for c in curves}
    return titled(alt.vconcat(*lines), title, [*subtitle, described(seeds, palette.bands)])


def round_axis() -> Any:
    """Return an axis whose ticks are whole numbers."""
    return altair().Axis(labelOverlap="greedy", labelFlush=False, tickCount=8, tickMinStep=1, format=",d")


def line_layers(rows: Sequence[Point], palette: Palette, x: Any, y: Axis, scale: Any, legend: Any = None) -> Any:
    """Return an altair chart of a line for each label, and bands for `palette.bands`; `x` is an encoding."""
    alt = altair()
    names = list(palette.algorithms)
    colour = colours(palette, legend)
    dashes = alt.Scale(domain=names, range=[palette.dash(name) for name in names])
    widths = json.dumps({name: palette.width(name) for name in names})
    drawn = palette.back_to_front(rows)
    base = alt.Chart(alt.Data(values=drawn)).encode(x=x, color=colour)
    chosen = f"indexof({json.dumps(list(palette.bands))}, datum.algorithm) >= 0"
    low = alt.Y(f"{y.key}_low:Q", title=y.title, scale=scale)
    band = base.transform_filter(chosen).mark_area(clip=True, opacity=0.15).encode(y=low, y2=f"{y.key}_high:Q")
    line = base.transform_calculate(width=f"{widths}[datum.algorithm]").mark_line(clip=True, strokeJoin="round")
    line = line.encode(
        y=alt.Y(f"{y.key}:Q", title=y.title, scale=scale),
        strokeDash=alt.StrokeDash("algorithm:N", scale=dashes, legend=legend),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
    )
    return alt.layer(band, line)


def live_chart(rows: Sequence[Point], palette: Palette, costs: Sequence[Axis], y: Axis) -> dict[str, Any]:
    """Return the specification of the page's chart of these rows, without them, against the first of the costs.

    The page sets the signal `shown` to the algorithms to show, and may replace the field and the title of x.
    """
    alt = altair()
    told = {y.key: y.title, f"{y.key}_low": "95% interval from", f"{y.key}_high": "to", "seeds": "seeds"}
    told |= {cost.key: cost.title for cost in costs}
    told = {key: title for key, title in told.items() if all(key in row for row in rows)}
    tooltip = ["algorithm:N", *(alt.Tooltip(f"{key}:Q", title=title, format=".4~g") for key, title in told.items())]
    near = alt.selection_point(name="near", nearest=True, on="pointerover", clear="pointerout", empty=False)
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom="wheel![event.shiftKey || event.ctrlKey]")
    across = alt.X(f"{costs[0].key}:Q", title=costs[0].title)
    layers = line_layers([], palette, across, y, alt.Scale(nice=True, domain=extent(rows, y)))
    opacity = alt.condition(near, alt.value(1), alt.value(0))
    dots = alt.Chart().mark_point(filled=True, size=60, clip=True).add_params(near)
    dots = dots.encode(x=across, y=f"{y.key}:Q", color=colours(palette), opacity=opacity, tooltip=tooltip)
    layers.layer[1] = layers.layer[1].add_params(zoom)
    chart = (layers + dots).add_params(alt.param(name="shown", value=list(palette.algorithms)))
    chart = chart.transform_filter("indexof(shown, datum.algorithm) >= 0").properties(width="container", height=380)
    return {key: value for key, value in embedded(chart).items() if key not in ("data", "datasets")}


def colours(palette: Palette, legend: Any = None) -> Any:
    """Return the altair encoding of an algorithm's colour."""
    alt = altair()
    names = list(palette.algorithms)
    scale = alt.Scale(domain=names, range=[palette.colour(name) for name in names])
    return alt.Color("algorithm:N", scale=scale, legend=legend)


def spread(values: Floats, gap: float, low: float, high: float) -> Floats:
    """Return the nearest values (least squares) in the same order, at least `gap` apart, within low ... high.

    >>> spread(np.array([5.0, 5.0, 1.0]), 2.0, 0.0, 9.0).tolist()
    [4.0, 6.0, 1.0]
    """
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    blocks: list[list[float]] = []  # of values that touch: their sum and number
    for value in values[order] - steps:
        blocks.append([float(value), 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, number = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + number]
    level = np.concatenate([np.full(int(number), total / number) for total, number in blocks])
    placed = np.empty_like(values)
    placed[order] = np.clip(level, low, max(low, high - steps[-1])) + steps
    return placed


def spans(lines: Iterable[tuple[Floats, Floats]], left: float, right: float) -> list[Span]:
    """Return the lowest and the highest value between left and right of each line that goes on beyond left.

    >>> spans([(np.array([0.0, 10.0]), np.array([0.0, 5.0])), (np.array([0.0, 4.0]), np.array([9.0, 9.0]))], 4.0, 6.0)
    [(2.0, 3.0)]
    """
    found = []
    for places, values in lines:
        if places[-1] > left:
            ends = np.interp([left, right], places, values)
            here = [*ends.tolist(), *values[(places >= left) & (places <= right)].tolist()]
            found.append((min(here), max(here)))
    return found


def lane(value: float, taken: Sequence[Span], low: float, high: float) -> Span:
    """Return the free heights for the name of this value: above the spans below it, and below all others.

    >>> lane(5.0, [(1.0, 3.0), (4.0, 6.0), (8.0, 9.0)], 0.0, 10.0)
    (3.0, 4.0)
    """
    floor = max((top for _, top in taken if top < value), default=low)
    return floor, min((bottom for bottom, top in taken if top >= value), default=high)


def lowest_gap(taken: Iterable[Span], need: float, low: float, high: float) -> float:
    """Return where the lowest free heights begin that are at least `need`; without such heights, the lower end.

    >>> lowest_gap([(1.0, 3.0), (6.0, 7.0)], 2.0, 0.0, 10.0), lowest_gap([(1.0, 9.0)], 2.0, 0.0, 10.0)
    (3.0, 0.0)
    """
    at = low
    for bottom, top in sorted(taken):
        if bottom - at >= need:
            return at
        at = max(at, top)
    return at if high - at >= need else low
