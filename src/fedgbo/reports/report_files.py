"""A report as files: one HTML page that opens offline, and figures and tables for a paper.

The page is page.html with the style, the scripts and the charts in it. All text is escaped. In addition, the content
security policy forbids all requests and all scripts but ours, in case text of a run folder got past the escaping.
"""

import base64
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fedgbo.core import RunFolderError
from fedgbo.core.files import write_atomic
from fedgbo.reports.charts import altair, colours, embedded, extra, live_chart, save_chart
from fedgbo.reports.comparison import baseline_row, conclusion, finding
from fedgbo.reports.cost_table import cost_columns, cost_lines, cost_remarks, metric_of
from fedgbo.reports.curves import DRIFT, Axis, cost_axes, measured, points, scores_of
from fedgbo.reports.finding import bar_layers, finding_chart, rounds_to_target
from fedgbo.reports.label_skew import Labels, Skew, live_skew_chart, skew_chart
from fedgbo.reports.load import RunProblem, flatten
from fedgbo.reports.palette import Palette, Point
from fedgbo.reports.sections import Section, differing, shared_settings
from fedgbo.reports.table import Cell, Table, latex, markdown, numbers_csv
from fedgbo.runs.folder import RunFolder
from fedgbo.runs.record import written

MACHINE = ("platform", "cpu", "kernel")  # of the versions in run.json, those that tell about the machine
CLIENT_METRIC = re.compile(r"clients\.(?!loss\.).*\.mean")  # of a record's scores
MOST, FEWEST = 2400, 100  # most points of a chart (a browser needs an element for each), fewest of a line in it


def build_page(
    sections: Sequence[Section], labels: Sequence[Labels], problems: Sequence[RunProblem], title: str = "fedgbo report"
) -> str:
    """Return the page: sections, each with the label skew of its task, and runs that could not be read."""
    jinja2 = extra("jinja2", "the report needs jinja2")
    html, style, script = (
        files("fedgbo.reports").joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    scripts = [_library(), script]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    contents = [_content(section, known) for section, known in zip(sections, labels, strict=True)]
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, **options).from_string(html)
    shown = {"title": title, "problems": problems, "sections": contents, "origin": origin(sections)}
    return str(template.render(style=style, scripts=scripts, hashes=hashes, **shown))


def origin(sections: Sequence[Section]) -> list[str]:
    """Say when the runs ended, with which versions and on which machine, as far as their folders know."""
    found: dict[str, list[float]] = {}
    for run in (run for section in sections for line in section.lines for run in line.runs):
        try:
            known, ended = RunFolder(run.path).origin(), (run.path / "metrics.jsonl").stat().st_mtime
        except (OSError, RunFolderError):  # the runs are those of a file, or were moved
            continue
        packages = [f"{name} {known[name]}" for name in ("fedgbo", "torch", "python") if name in known]
        found.setdefault(", ".join([*packages, *(known[key] for key in MACHINE if key in known)]), []).append(ended)
    last = {about: time.strftime("%d %B %Y", time.gmtime(max(ends))).lstrip("0") for about, ends in found.items()}
    return [f"{len(found[about])} runs, the last one on {day}: {about}" for about, day in last.items()]


def thinned(rows: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points of each line, evenly spread, including its first and its last."""
    drawn: list[Point] = []
    for _, group in groupby(rows, key=lambda row: row["algorithm"]):
        line = list(group)
        drawn += [line[place] for place in np.linspace(0, len(line) - 1, min(most, len(line))).round().astype(int)]
    return drawn


def _content(section: Section, labels: Labels) -> dict[str, Any]:
    summaries = section.summaries
    found = finding(summaries)
    two = () if found is None else (found.baseline.label, found.ours.label)
    palette = Palette({line.label: line.algorithm for line in section.lines}, "var(--fedavg)", two)
    lines = section.lines
    charts = {"Curves": measured(scores_of(lines), lines), "Client drift": measured(DRIFT, lines)}
    return {
        "about": section,
        "palette": palette,
        "results": conclusion(summaries),
        "members": [run for line in section.lines for run in line.runs],
        "curves": [_chart(section, palette, heading, axes) for heading, axes in charts.items() if axes],
        "goal": found and found.goal,
        "metric": _metric(section),
        "bars": found and {"spec": _bars(rounds_to_target(summaries, found), palette)},
        "costs": cost_table(section),
        "clients": clients_table(section),
        "settings": settings_table(section),
        "shared": shared_settings(section),
        "runs": runs_table(section),
        "labels": labels,
        "skew": {"spec": live_skew_chart(labels, "var(--heat)")} if isinstance(labels, Skew) else None,
    }


def _bars(rows: Sequence[Point], palette: Palette) -> dict[str, Any]:
    chart = bar_layers(rows, colours(palette), "var(--quiet)", "var(--ink)")
    return embedded(chart.properties(width="container", height=28 * len(rows)))


def _chart(section: Section, palette: Palette, heading: str, scores: Sequence[Axis]) -> dict[str, Any]:
    costs, names = cost_axes(section.lines), [line.label for line in section.lines]
    rows = points(section.lines, costs, scores)
    drawn = palette.back_to_front(thinned(rows, max(FEWEST, MOST // len(section.lines))))
    described = f"{section.title}: {scores[0].title} of {', '.join(names)}. The numbers are in the table of costs."
    banded = {row["algorithm"] for row in rows if f"{scores[0].key}_low" in row}
    return {
        "id": f"{section.slug}-{heading.split()[-1].lower()}",
        "heading": heading,
        "names": names,
        "bands": [name for name in palette.bands if name in banded],
        "costs": costs,
        "scores": scores,
        "thinned": len(drawn) < len(rows),
        "data": {
            "points": drawn,
            "specs": {axis.key: live_chart(rows, palette, costs, axis) for axis in scores},
            "description": described,
        },
    }


def cost_table(section: Section) -> Table | None:
    """Return the table of costs; None where no line has accuracies."""
    if not (summaries := section.summaries):
        return None
    against = baseline_row(summaries) is not None
    title = f"{section.title}: best {_metric(section)} and its cost over all clients"
    columns, rows = cost_columns(against, _metric(section)), tuple(cost_lines(summaries, against))
    remarks = cost_remarks(against, max(row.seeds for row in summaries), _metric(section))
    times = [row.best.simulated_seconds for row in summaries]
    if any(time is not None for time in times):
        cells = [Cell("-") if time is None else Cell(f"{time:,.1f} s", exact=time) for time in times]
        columns = (*columns, "Simulated time")
        rows = tuple((*row, cell) for row, cell in zip(rows, cells, strict=True))
    return Table(f"{section.slug}-costs", title, columns, rows, remarks=remarks, measured=True)


def clients_table(section: Section) -> Table | None:
    """Return the scores over clients, each with the model that it uses; None where clients have no test sets."""
    rows = []
    for line in section.lines:
        ends = [run.records[-1].scores for run in line.runs]
        name = next((key[: -len(".mean")] for key in ends[0] if CLIENT_METRIC.fullmatch(key)), None)
        if name is None or any(f"{name}.mean" not in end for end in ends):
            continue
        numbers = [np.mean([end[f"{name}.{what}"] for end in ends]) for what in ("mean", "worst_decile", "spread")]
        metric = name.partition(".")[2]
        cells = [Cell(written(float(number), metric), exact=float(number)) for number in numbers]
        rows.append((Cell(line.label), Cell(metric), *cells))
    if not rows:
        return None
    title = f"{section.title}: clients on their own test sets, at the end"
    columns = ("Algorithm", "Metric", "Mean over clients", "Worst tenth", "Spread")
    return Table(f"{section.slug}-clients", title, columns, tuple(rows), measured=True)


def settings_table(section: Section) -> Table:
    """Return the settings of each line in which they are not all the same, as one text."""
    names = [name for name in differing([line.settings for line in section.lines]) if name != "algorithm"]
    rows = [
        (line.label, ", ".join(f"{name} = {line.settings[name]}" for name in names if name in line.settings))
        for line in section.lines
    ]
    title = f"{section.title}: settings in which the runs differ"
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table(f"{section.slug}-settings", title, ("Algorithm", "Settings"), cells, measured=True)


def runs_table(section: Section) -> Table:
    """Return every run with its status, rounds, best accuracy and time."""
    rows = []
    for label, run in ((line.label, run) for line in section.lines for run in line.runs):
        last = run.records[-1]
        best = max((record.accuracy for record in run.records if record.accuracy is not None), default=None)
        texts = [str(run.path), label, str(run.config.seed), run.status, f"{last.round} of {run.rounds}"]
        texts += ["-" if best is None else written(best, run.metric), f"{last.seconds:.1f} s"]
        rows.append(tuple(map(Cell, texts)))
    columns = ("Run", "Algorithm", "Seed", "Status", "Rounds", f"Best {_metric(section)}", "Time")
    return Table(f"{section.slug}-runs", f"{section.title}: runs", columns, tuple(rows), measured=True)


def _metric(section: Section) -> str:
    return metric_of(section.summaries)


@cache
def _library() -> str:
    """Return Vega, Vega-Lite in altair's version, and Vega-Embed, as one script."""
    converter = extra("vl_convert", "the report needs vl-convert")
    version = ".".join(altair().SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return str(converter.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def write_figures(sections: Sequence[Section], labels: Sequence[Labels], folder: Path) -> list[Path]:
    """Write the charts and tables of the page into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for section, known in zip(sections, labels, strict=True):
        for name, chart in _figures(section, known).items():
            written += save_chart(chart, folder / f"{section.slug}-{name}", ["png", "svg", "pdf"])
        for name, text in _texts(section).items():
            written.append(folder / f"{section.slug}-{name}")
            write_atomic(written[-1], text.encode(errors="backslashreplace"))  # a run folder's name may be any bytes
    return written


def _figures(section: Section, labels: Labels) -> dict[str, Any]:
    """Return the first score against every cost, other scores and the drift against rounds, and the label skew."""
    costs, scores = cost_axes(section.lines), measured([*scores_of(section.lines), *DRIFT], section.lines)
    figures = {}
    for x, y in [(cost, scores[0]) for cost in costs] + [(costs[0], score) for score in scores[1:]]:
        figures[f"{y.key}-{x.key.partition('_')[0]}"] = finding_chart(section.lines, x, y, section.title)
    if isinstance(labels, Skew):
        figures["labels"] = skew_chart(labels, f"{section.title}: labels of clients")
    return figures


def _texts(section: Section) -> dict[str, str]:
    """Return the tables as Markdown, LaTeX and plain numbers in CSV, and the points of the curves; by file name."""
    runs, costs = runs_table(section), cost_table(section)
    tables: dict[str, tuple[Table, list[dict[str, Any]]]] = {
        "settings": (settings_table(section), [{"label": line.label, **line.settings} for line in section.lines]),
        "runs": (runs, [dict(zip(runs.columns, (cell.ours for cell in row), strict=True)) for row in runs.rows]),
    }
    if (clients := clients_table(section)) is not None:
        exact = [[cell.ours if cell.exact is None else cell.exact for cell in row] for row in clients.rows]
        tables["clients"] = (clients, [dict(zip(clients.columns, row, strict=True)) for row in exact])
    if costs is not None:
        rows = [flatten(asdict(row)) for row in section.summaries]  # accuracy as a share, bytes as counted
        numbers = [{name.replace(".", "_"): value for name, value in row if value is not None} for row in rows]
        tables["costs"] = (costs, numbers)
    raw = [replace(axis, scale=1.0) for axis in cost_axes(section.lines)]
    scores = measured([*scores_of(section.lines), *DRIFT], section.lines)
    texts = {"curves.csv": numbers_csv(points(section.lines, raw, scores))}
    for name, (table, numbers) in tables.items():
        texts |= {f"{name}.md": markdown(table), f"{name}.tex": latex(table), f"{name}.csv": numbers_csv(numbers)}
    return texts
