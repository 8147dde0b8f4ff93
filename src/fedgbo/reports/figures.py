"""Figures and tables as files, for a paper: PNG, SVG and PDF; Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgbo.reports.chart import save_chart
from fedgbo.reports.drawing import Palette, curve_chart, extent, on_paper
from fedgbo.reports.latex import latex
from fedgbo.reports.measures import Axis, cost_axes, drift_axes, points, score_axes
from fedgbo.reports.render import markdown, numbers_csv
from fedgbo.reports.sections import Section, palette_order
from fedgbo.reports.skew import skew_chart
from fedgbo.reports.summary import Row, summarise
from fedgbo.reports.table import Table
from fedgbo.reports.tables import cost_table, runs_table, settings_table
from fedgbo.reports.tasks import Labels
from fedgbo.runs.files import write_atomic

KINDS = ("png", "svg", "pdf")


def write_figures(sections: Sequence[Section], labels: Sequence[Labels], folder: Path) -> list[Path]:
    """Write everything that the page shows into a folder; return the files."""
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
    """The first score against every cost, the other scores and the drift against rounds; and the points as CSV."""
    costs, scores, drift = cost_axes(section.lines), score_axes(section.lines), drift_axes(section.lines)
    rows = points(section.lines, costs, [*scores, *drift])
    names, seeds = [line.label for line in section.lines], max(len(line.runs) for line in section.lines)
    pairs = [(cost, scores[0]) for cost in costs] + [(costs[0], score) for score in [*scores[1:], *drift]]
    files = []
    for x, y in pairs:
        present = [row for row in rows if y.key in row]
        chart = on_paper(curve_chart(present, palette, names, x, y, domain=extent(rows, y)), section.title, seeds)
        files += save_chart(chart, folder / f"{section.slug}-{y.key}-{x.key.partition('_')[0]}", KINDS)
    raw = points(section.lines, [Axis(axis.key, axis.title) for axis in costs], [*scores, *drift])
    return [*files, _write(folder / f"{section.slug}-curves.csv", numbers_csv(raw))]


def _tables(section: Section, folder: Path) -> list[Path]:
    settings = [{"label": line.label, **line.settings} for line in section.lines]
    runs = runs_table(section)
    named = [dict(zip(runs.columns, (cell.ours for cell in row), strict=True)) for row in runs.rows]
    files = _table(settings_table(section), settings, folder) + _table(runs, named, folder)
    costs = cost_table(section)
    if costs is not None:
        files += _table(costs, [_numbers(row) for row in summarise(section.groups())], folder)
    return files


def _table(table: Table, numbers: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    texts = {"md": markdown(table), "tex": latex(table), "csv": numbers_csv(numbers)}
    return [_write(folder / f"{table.name}.{kind}", text) for kind, text in texts.items()]


def _numbers(row: Row) -> dict[str, Any]:
    """Return a row of costs as plain numbers: accuracy as a share, bytes and operations as they were counted."""
    flat: dict[str, Any] = {}
    for key, value in asdict(row).items():
        flat |= {f"{key}_{part}": number for part, number in value.items()} if isinstance(value, dict) else {key: value}
    return {key: value for key, value in flat.items() if value is not None}


def _write(path: Path, text: str) -> Path:
    write_atomic(path, text.encode(errors="backslashreplace"))  # a run folder's name may be any bytes
    return path
