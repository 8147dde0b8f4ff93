"""The picture of a comparison: accuracy against rounds; and how charts become files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.curves import Palette, altair, curve_chart
from fedgbo.reports.load import Group
from fedgbo.reports.measures import SCORES, Axis, points
from fedgbo.reports.sections import Line

ROUNDS = Axis("round", "communication rounds")
ACCURACY = SCORES[0]


def accuracy_chart(groups: Sequence[Group], title: str) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds."""
    rows = points([Line(group.label, group.runs) for group in groups], [ROUNDS], [ACCURACY])
    names = tuple(group.label for group in groups)
    floor = 10 * (max(row["accuracy"] for row in rows) // 20)  # the upper half of what was reached is what is compared
    chart = curve_chart(rows, Palette(names), names, ROUNDS, ACCURACY, domain=[floor, 100])
    return titled(chart, title, max(len(group.runs) for group in groups))


def titled(chart: Any, title: str, seeds: int) -> Any:
    """Give curves their title and size on paper."""
    subtitle = f"mean of {seeds} seeds, bands: 95% confidence interval" if seeds > 1 else "one seed"
    return (
        chart.properties(width=640, height=400, title=altair().Title(title, subtitle=subtitle, anchor="start"))
        .configure_axis(grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, labelLimit=260, symbolSize=400, symbolStrokeWidth=2.5)
    )


def save_chart(chart: Any, path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the chart in each of the formats, beside each other; return the files."""
    files = [path.with_suffix(f".{kind}") for kind in kinds]
    try:
        for file in files:
            chart.save(file, **({"scale_factor": 2} if file.suffix == ".png" else {}))
    except (ImportError, ValueError) as error:
        raise MissingExtraError(f"charts need vl-convert: pip install 'fedgbo[charts]' ({error})") from error
    return files
