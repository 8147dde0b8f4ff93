"""The picture: accuracy against rounds, with confidence bands. altair draws, vl-convert writes PNG and SVG."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.load import Group
from fedgbo.reports.summary import confidence

# Okabe and Ito's colours for the colour-blind, and dashes so that black-and-white print works too.
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4], [4, 2, 1, 2], [3, 5]]


def altair() -> Any:
    """Return the altair module, which draws."""
    try:
        return import_module("altair")
    except ImportError as error:
        raise MissingExtraError("charts need altair: pip install 'fedgbo[charts]'") from error


def accuracy_chart(groups: Sequence[Group], title: str) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds."""
    alt = altair()
    rows = [
        {"algorithm": g.label, "round": r, "accuracy": 100 * m, "low": 100 * (m - h), "high": 100 * (m + h)}
        for g in groups
        for r, m, h in zip(g.rounds, g.accuracy.mean(axis=0), _bands(g), strict=True)
    ]
    seeds = max(len(group.runs) for group in groups)
    names = [group.label for group in groups]
    floor = 10 * (max(row["accuracy"] for row in rows) // 20)  # the upper half of what was reached is what is compared
    colours = alt.Scale(domain=names, range=_cycled(COLOURS, len(names)))
    dashes = alt.Scale(domain=names, range=_cycled(DASHES, len(names)))
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1)
    colour = alt.Color("algorithm:N", scale=colours, legend=legend)
    table = alt.Data(values=rows)
    base = alt.Chart(table).encode(x=alt.X("round:Q", title="communication rounds"))
    height = alt.Scale(domain=[floor, 100])
    band = base.mark_area(opacity=0.1, clip=True).encode(
        y=alt.Y("low:Q", title="test accuracy (%)", scale=height),
        y2="high:Q",
        color=colour,
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        y=alt.Y("accuracy:Q", scale=height),
        color=colour,
        strokeDash=alt.StrokeDash("algorithm:N", scale=dashes, legend=legend),
    )
    subtitle = f"mean of {seeds} seeds, bands: 95% confidence interval" if seeds > 1 else "one seed"
    return (
        (band + line)
        .properties(width=640, height=400, title=alt.Title(title, subtitle=subtitle, anchor="start"))
        .configure_axis(grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)
    )


def save_chart(chart: Any, path: Path) -> list[Path]:
    """Write the chart as PNG and SVG beside each other; return the files."""
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    try:
        chart.save(files[0], scale_factor=2)
        chart.save(files[1])
    except (ImportError, ValueError) as error:
        raise MissingExtraError(f"charts need vl-convert: pip install 'fedgbo[charts]' ({error})") from error
    return files


def _bands(group: Group) -> Any:
    half = confidence(group.accuracy)
    return [0.0 if h != h else h for h in half]  # a single seed has no band


def _cycled(values: list[Any], count: int) -> list[Any]:
    return [values[i % len(values)] for i in range(count)]
