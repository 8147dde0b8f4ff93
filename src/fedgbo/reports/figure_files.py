"""Figures and tables as files, for a paper: PNG, SVG and PDF; Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedgbo.reports.charts import Palette, curve_chart, extent, on_paper, save_chart
from fedgbo.reports.comparison import Summary, summarise
from fedgbo.reports.curves import cost_axes, drift_axes, points, score_axes
from fedgbo.reports.label_skew import Labels, skew_chart
from fedgbo.reports.load import flatten
from fedgbo.reports.report_tables import cost_table, runs_table, settings_table
from fedgbo.reports.sections import Section, palette_order
from fedgbo.reports.table import Table, latex, markdown, numbers_csv
from fedgbo.runs.files import write_atomic

KINDS = ("png", "svg", "pdf")


def write_figures(sections: Sequence[Section], labels: Sequence[Labels], folder: Path) -> list[Path]:
    """Write the charts and tables of the page into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    palette, files = Palette(palette_order(sections)), []
    for section, known in zip(sections, labels, strict=True):
        files += _curves(section, palette, folder)
        files += _tables(section, folder)
        if known.skew is not None:
            chart = skew_chart(known.skew, f"{section.title}: labels of clients")
            files += save_chart(chart, folder / f"{section.slug}-labels", KINDS)
    return files


def _curves(section: Section, palette: Palette, folder: Path) -> list[Path]:
    """Write the first score against every cost, other scores and the drift against rounds, and the points as CSV."""
    costs, scores = cost_axes(section.lines), [*score_axes(section.lines), *drift_axes(section.lines)]
    rows = points(section.lines, costs, scores)
    names, seeds = [line.label for line in section.lines], max(len(line.runs) for line in section.lines)
    files = []
    for x, y in [(cost, scores[0]) for cost in costs] + [(costs[0], score) for score in scores[1:]]:
        present = [row for row in rows if x.key in row and y.key in row]
        chart = on_paper(curve_chart(present, palette, names, x, y, extent(rows, y)), section.title, seeds)
        files += save_chart(chart, folder / f"{section.slug}-{y.key}-{x.key.partition('_')[0]}", KINDS)
    raw = points(section.lines, [replace(axis, scale=1.0) for axis in costs], scores)
    return [*files, _write(folder / f"{section.slug}-curves.csv", numbers_csv(raw))]


def _tables(section: Section, folder: Path) -> list[Path]:
    settings = [{"label": line.label, **line.settings} for line in section.lines]
    runs, costs = runs_table(section), cost_table(section)
    named = [dict(zip(runs.columns, (cell.ours for cell in row), strict=True)) for row in runs.rows]
    files = _table(settings_table(section), settings, folder) + _table(runs, named, folder)
    if costs is not None:
        files += _table(costs, [_numbers(row) for row in summarise(section.groups())], folder)
    return files


def _table(table: Table, numbers: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    texts = {"md": markdown(table), "tex": latex(table), "csv": numbers_csv(numbers)}
    return [_write(folder / f"{table.name}.{kind}", text) for kind, text in texts.items()]


def _numbers(row: Summary) -> dict[str, Any]:
    """Return a row of costs as plain numbers: accuracy as a share, bytes and operations as they were counted."""
    return {name.replace(".", "_"): value for name, value in flatten(asdict(row)) if value is not None}


def _write(path: Path, text: str) -> Path:
    write_atomic(path, text.encode(errors="backslashreplace"))  # a run folder's name may be any bytes
    return path
