"""What the page's script needs to draw: specifications, points and axes, with the page's own colours.

Colours are CSS variables, which SVG takes as they are: dark mode and print are then a matter of the style sheet alone.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np

from fedgbo.reports.drawing import Palette, live_chart
from fedgbo.reports.measures import Axis, Point, cost_axes, drift_axes, points, score_axes
from fedgbo.reports.sections import Section
from fedgbo.reports.skew import Skew, live_skew_chart

MOST, FEWEST = 2400, 100  # points of a chart, of which a browser makes elements to point at, and of a line in it
_TEXT = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "titleFontSize": 13}
CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {**_TEXT, "gridColor": "var(--rule)", "domainColor": "var(--quiet)", "tickColor": "var(--quiet)"},
    "legend": _TEXT,
    "view": {"stroke": "var(--rule)"},
}


def curves_data(section: Section, palette: Palette) -> list[dict[str, Any]]:
    """Return the section's charts: the scores and, where it was measured, clients' drift."""
    scores, drift = score_axes(section.lines), drift_axes(section.lines)
    charts = [_chart(section, palette, "curves", "Curves", scores)]
    if drift:
        charts.append(_chart(section, palette, "drift", "Client drift", drift))
    return charts


def skew_data(skew: Skew) -> dict[str, Any]:
    """Return the heat map of clients' labels."""
    return {"spec": {**live_skew_chart(skew, "var(--heat)"), "config": CONFIG}}


def _chart(section: Section, palette: Palette, kind: str, heading: str, scores: Sequence[Axis]) -> dict[str, Any]:
    costs = cost_axes(section.lines)
    rows = points(section.lines, costs, scores)
    drawn = thinned(rows, max(FEWEST, MOST // len(section.lines)))
    names = [line.label for line in section.lines]
    described = f"{section.title}: {scores[0].title} of {', '.join(names)}. The numbers are in the table of costs."
    return {
        "id": f"{section.slug}-{kind}",
        "heading": heading,
        "names": names,
        "costs": [asdict(axis) for axis in costs],
        "scores": [asdict(axis) for axis in scores],
        "description": described,
        "thinned": len(drawn) < len(rows),
        "data": {
            "points": drawn,
            "specs": {
                axis.key: {**live_chart(rows, palette, names, costs, axis), "config": CONFIG, "description": described}
                for axis in scores
            },
        },
    }


def thinned(rows: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points of each line, evenly spread, with its first and its last."""
    drawn: list[Point] = []
    for _, group in groupby(rows, key=lambda row: row["algorithm"]):
        line = list(group)
        places = np.linspace(0, len(line) - 1, min(most, len(line))).round().astype(int).tolist()
        drawn += [line[place] for place in places]
    return drawn
