"""The picture: accuracy against rounds, with confidence bands. altair draws, vl-convert writes PNG and SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.load import Group
from fedgbo.reports.summary import confidence

# Okabe and Ito's colours for the colour-blind, and dashes so that black-and-white print works too.
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4], [4, 2, 1, 2], [3, 5]]


def accuracy_chart(groups: Sequence[Group], title: str) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds."""
    try:
        import altair as alt
    except ImportError as error:
        raise MissingExtraError("charts need altair: pip install 'fedgbo[charts]'") from error
    rows = [
        {"algorithm": g.label, "round": r, "accuracy": 100 * m, "low": 100 * (m - h), "high": 100 * (m + h)}
        for g in groups
        for r, m, h in zip(g.rounds, g.accuracy.mean(axis=0), _bands(g), strict=True)
    ]
    seeds = max(len(group.runs) for group in groups)
    names = [group.label for group in groups]
    order = range(len(names))
    colour = alt.Color(
        "algorithm:N", sort=names, title=None, scale=alt.Scale(domain=names, range=[_cycled(COLOURS, i) for i in order])
    )
    dash = alt.StrokeDash(
        "algorithm:N", sort=names, title=None, scale=alt.Scale(domain=names, range=[_cycled(DASHES, i) for i in order])
    )
    table = alt.Data(values=rows)  # type: ignore[no-untyped-call]
    base = alt.Chart(table).encode(x=alt.X("round:Q", title="communication rounds"))
    band = base.mark_area(opacity=0.15).encode(
        y=alt.Y("low:Q", title="test accuracy (%)", scale=alt.Scale(zero=False)), y2="high:Q", color=colour
    )
    line = base.mark_line(strokeWidth=2).encode(y=alt.Y("accuracy:Q"), color=colour, strokeDash=dash)
    subtitle = f"mean of {seeds} seeds, bands: 95% confidence interval" if seeds > 1 else "one seed"
    return (
        (band + line)
        .properties(width=640, height=400, title=alt.Title(title, subtitle=subtitle, anchor="start"))
        .configure_axis(grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, symbolSize=300, symbolStrokeWidth=2)
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


def _cycled(values: list[Any], i: int) -> Any:
    return values[i % len(values)]
