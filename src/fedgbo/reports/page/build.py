"""Put the page together: a template with everything escaped, the charts' specifications as JSON, scripts by their hash.

The content security policy forbids every request and every script but ours, so that nothing that comes out of a run
folder can do anything, even if it got past the escaping.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.chart import COLOURS, altair
from fedgbo.reports.collect import Problem
from fedgbo.reports.drawing import Palette
from fedgbo.reports.page.charts import curves_data, skew_data
from fedgbo.reports.sections import Section, palette_order
from fedgbo.reports.tables import cost_table, runs_table, settings_table, shared_settings
from fedgbo.reports.tasks import Labels

INSTALL = "pip install 'fedgbo[charts]'"


def build_page(
    sections: Sequence[Section], labels: Sequence[Labels], problems: Sequence[Problem], title: str = "fedgbo report"
) -> str:
    """Return the page: sections, each with what is known of its task's labels, and runs that could not be read."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtraError(f"the report needs jinja2: {INSTALL}") from error
    assets = files("fedgbo.reports.page")
    palette = Palette(palette_order(sections), tuple(f"var(--c{i})" for i in range(len(COLOURS))))
    scripts = [_library(), assets.joinpath("page.js").read_text(encoding="utf-8")]
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(assets.joinpath("page.html").read_text(encoding="utf-8")).render(
        title=title,
        style=assets.joinpath("page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        sections=[_content(section, known, palette) for section, known in zip(sections, labels, strict=True)],
        problems=problems,
        palette=palette,
    )


def _content(section: Section, labels: Labels, palette: Palette) -> dict[str, Any]:
    runs = [run for line in section.lines for run in line.runs]
    return {
        "title": section.title,
        "slug": section.slug,
        "notes": section.notes,
        "unfinished": [run for run in runs if run.status not in ("finished", "stopped")],
        "curves": curves_data(section, palette),
        "costs": cost_table(section),
        "settings": settings_table(section),
        "shared": shared_settings(section),
        "runs": runs_table(section),
        "configs": [(str(run.path), json.dumps(run.config.model_dump(), indent=2)) for run in runs],
        "labels": labels,
        "skew": skew_data(labels.skew) if labels.skew is not None else None,
    }


@cache
def _library() -> str:
    """Return Vega, Vega-Lite in the version that altair writes for, and Vega-Embed, as one script."""
    try:
        from vl_convert import javascript_bundle
    except ImportError as error:
        raise MissingExtraError(f"the report needs vl-convert: {INSTALL}") from error
    version = ".".join(altair().SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
