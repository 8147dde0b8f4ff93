"""The report as one HTML page that opens offline: page.html with the charts' specifications, the style and the scripts.

All text is escaped. In addition, the content security policy forbids every request, and every script whose hash it
does not list, so that the content of a run folder cannot execute anything even if it got past the escaping.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

import numpy as np

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.charts import COLOURS, Palette, altair, live_chart
from fedgbo.reports.curves import Axis, Point, cost_axes, drift_axes, points, score_axes
from fedgbo.reports.label_skew import Labels, live_skew_chart
from fedgbo.reports.load import RunProblem
from fedgbo.reports.report_tables import cost_table, runs_table, settings_table, shared_settings
from fedgbo.reports.sections import Section, palette_order

INSTALL = "pip install 'fedgbo[charts]'"
MOST, FEWEST = 2400, 100  # most points of a chart (a browser needs an element for each), fewest of a line in it

# Colours are CSS variables, which SVG accepts, so that the style sheet alone decides on dark mode and print.
_TEXT = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "titleFontSize": 13}
CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {**_TEXT, "gridColor": "var(--rule)", "domainColor": "var(--quiet)", "tickColor": "var(--quiet)"},
    "legend": _TEXT,
    "view": {"stroke": "var(--rule)"},
}


def build_page(
    sections: Sequence[Section], labels: Sequence[Labels], problems: Sequence[RunProblem], title: str = "fedgbo report"
) -> str:
    """Return the page: sections, each with the labels of its task, and runs that could not be read."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtraError(f"the report needs jinja2: {INSTALL}") from error
    html, style, script = (
        files("fedgbo.reports").joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    palette = Palette(palette_order(sections), tuple(f"var(--c{i})" for i in range(len(COLOURS))))
    scripts = [_library(), script]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(html).render(
        title=title,
        style=style,
        scripts=scripts,
        hashes=" ".join(f"'sha256-{digest}'" for digest in digests),
        sections=[_content(section, known, palette) for section, known in zip(sections, labels, strict=True)],
        problems=problems,
        palette=palette,
    )


def thinned(rows: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points of each line, evenly spread, including its first and its last."""
    drawn: list[Point] = []
    for _, group in groupby(rows, key=lambda row: row["algorithm"]):
        line = list(group)
        places = np.linspace(0, len(line) - 1, min(most, len(line))).round().astype(int).tolist()
        drawn += [line[place] for place in places]
    return drawn


def _content(section: Section, labels: Labels, palette: Palette) -> dict[str, Any]:
    runs = [run for line in section.lines for run in line.runs]
    drift, skew = drift_axes(section.lines), labels.skew
    curves = [_chart(section, palette, "curves", "Curves", score_axes(section.lines))]
    return {
        "title": section.title,
        "slug": section.slug,
        "notes": section.notes,
        "unfinished": [run for run in runs if run.status not in ("finished", "stopped")],
        "curves": curves + ([_chart(section, palette, "drift", "Client drift", drift)] if drift else []),
        "costs": cost_table(section),
        "settings": settings_table(section),
        "shared": shared_settings(section),
        "runs": runs_table(section),
        "configs": [(str(run.path), json.dumps(run.config.model_dump(), indent=2)) for run in runs],
        "labels": labels,
        "skew": None if skew is None else {"spec": {**live_skew_chart(skew, "var(--heat)"), "config": CONFIG}},
    }


def _chart(section: Section, palette: Palette, kind: str, heading: str, scores: Sequence[Axis]) -> dict[str, Any]:
    costs = cost_axes(section.lines)
    rows = points(section.lines, costs, scores)
    drawn = thinned(rows, max(FEWEST, MOST // len(section.lines)))
    names = [line.label for line in section.lines]
    described = f"{section.title}: {scores[0].title} of {', '.join(names)}. The numbers are in the table of costs."
    specs = {
        axis.key: {**live_chart(rows, palette, names, costs, axis), "config": CONFIG, "description": described}
        for axis in scores
    }
    return {
        "id": f"{section.slug}-{kind}",
        "heading": heading,
        "names": names,
        "costs": [asdict(axis) for axis in costs],
        "scores": [asdict(axis) for axis in scores],
        "description": described,
        "thinned": len(drawn) < len(rows),
        "data": {"points": drawn, "specs": specs},
    }


@cache
def _library() -> str:
    """Return Vega, Vega-Lite in altair's version, and Vega-Embed, as one script."""
    try:
        from vl_convert import javascript_bundle
    except ImportError as error:
        raise MissingExtraError(f"the report needs vl-convert: {INSTALL}") from error
    version = ".".join(altair().SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
